"""torch's own databases of modules and operators as cases for `kernelwright.optimize`."""
