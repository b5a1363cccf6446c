//! Becoming the command, or staying as its parent.
