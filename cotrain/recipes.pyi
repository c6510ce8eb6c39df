"""The recipes by name, for type checkers and editors; a test holds them against ``METHODS``."""

# fmt: off
from cotrain.methods.alphaproof import alphaproof as alphaproof
from cotrain.methods.at_grpo import at_grpo as at_grpo
from cotrain.methods.co_rewarding import co_rewarding as co_rewarding
from cotrain.methods.constitutional import constitutional as constitutional
from cotrain.methods.cooper import cooper as cooper
from cotrain.methods.coverrl import coverrl as coverrl
from cotrain.methods.critique import critique as critique
from cotrain.methods.debate import debate as debate
from cotrain.methods.debate import debate_solve as debate_solve
from cotrain.methods.demo import demo as demo
from cotrain.methods.dsm import dsm as dsm
from cotrain.methods.gar import gar as gar
from cotrain.methods.generator_verifier_critic import generator_verifier_critic as generator_verifier_critic
from cotrain.methods.genprm import genprm as genprm
from cotrain.methods.gram import gram as gram
from cotrain.methods.grpo import grpo as grpo
from cotrain.methods.judged import judged as judged
from cotrain.methods.mae import mae as mae
from cotrain.methods.magrpo import magrpo as magrpo
from cotrain.methods.mars import mars as mars
from cotrain.methods.marti import marti as marti
from cotrain.methods.prime import prime as prime
from cotrain.methods.proposer_solver import proposer_solver as proposer_solver
from cotrain.methods.rise import rise as rise
from cotrain.methods.self_rewarding import self_rewarding as self_rewarding
from cotrain.methods.self_verify import self_verify as self_verify
from cotrain.methods.semi_supervised import semi_supervised as semi_supervised
from cotrain.methods.spin import spin as spin
from cotrain.methods.spiral import spiral as spiral
from cotrain.methods.ssp import ssp as ssp
from cotrain.methods.ssrl import ssrl as ssrl
from cotrain.methods.stepwiser import stepwiser as stepwiser
from cotrain.methods.tango import tango as tango
from cotrain.methods.ttrl import ttrl as ttrl
from cotrain.methods.two_agents_split import two_agents_split as two_agents_split
