"""From a rung's source to a kernel loaded on a device."""
