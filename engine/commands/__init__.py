"""One module per `outboard` command; none imports torch when it is itself imported."""
