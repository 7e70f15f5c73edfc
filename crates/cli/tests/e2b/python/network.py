"""Whether a sandbox is let out, asked from inside."""

# Addresses that nobody has: one for documentation, and a public one of a network that is assigned to nobody.
ONE, OTHER = "192.0.2.1", "2d00::7"


def script_of(host):
    """A line of a shell that begins a connection and says what came of it."""
    script = f"import socket; socket.create_connection(({host!r}, 443), 30)"
    return f'python3 -c "{script}" 2>&1; echo $?'


def was_let_out(said):
    """Whether the connection was begun: one that no rule allows is refused, by whoever is there on the way out."""
    assert said == "0\n" or "refused" in said, said
    return said == "0\n"
