"""Start, watch and end the processes of a job; a record is left whatever becomes of them."""
