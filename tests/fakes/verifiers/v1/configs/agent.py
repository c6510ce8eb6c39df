from verifiers.v1 import AgentConfig


def agent_config_fields(config):
    return {name: value for name, value in vars(type(config)).items() if isinstance(value, AgentConfig)}
