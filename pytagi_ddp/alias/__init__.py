"""A folder that `as_pytagi` puts on `sys.path`, so that processes which a program starts find a `pytagi` there."""
