"""From a rung's source to a kernel that is loaded on a device."""
