"""The private names of other libraries that this project uses or replaces: one module per library."""
