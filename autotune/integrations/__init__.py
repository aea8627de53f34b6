"""What other libraries' users get: pieces of autotune behind those libraries' own interfaces."""
