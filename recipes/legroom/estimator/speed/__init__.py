"""The seconds of a step from its operations and a device's figures."""
