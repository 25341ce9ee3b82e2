"""A tenure is a period in one role and epoch: `core` has what it is made of, which each feature takes whole."""
