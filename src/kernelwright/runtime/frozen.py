"""Weights that freeze() has split: their halves, as long as the weights are what they were."""


def stamped(weight):
    """What tells that a weight was changed; a write through `.data` leaves it as it is."""
    return weight.data_ptr(), None if weight.is_inference() else weight._version


def halves_of(kept, target, weight):
    """The halves of a weight and what they are scaled by, or nothing where it is not frozen."""
    if target not in kept:
        return None, None
    halves, scales, stamp = kept[target]
    if stamp != stamped(weight):
        again = "call freeze() again or unfreeze()"
        raise RuntimeError(f"The weight {target} changed after freeze(); {again}.")
    return halves, scales
