def state_cls(cls):
    return dict
