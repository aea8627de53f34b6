"""What stops running trials early."""
