import importlib

import verifiers.v1 as vf


def _class_of(name, base):
    module = importlib.import_module(name)
    return next(one for one in (getattr(module, n) for n in module.__all__) if issubclass(one, base))


def taskset_config_type(name):
    return _class_of(name, vf.Taskset).CONFIG


def load_taskset(config):
    return _class_of(config.id, vf.Taskset)(config)


def resolve_env_config(settings):
    name = settings["taskset"]["id"]
    cls = _class_of(settings["id"] or name, vf.Env).CONFIG
    config = cls(**settings | {"taskset": taskset_config_type(name)(**settings["taskset"])})
    config.env_id = "+".join(part for part in (settings["id"], name) if part)
    return config


def load_environment(config):
    return _class_of(config.id or config.taskset.id, vf.Env)(config)
