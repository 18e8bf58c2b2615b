"""Loop pains of real users, each a small program; see README.md here."""
