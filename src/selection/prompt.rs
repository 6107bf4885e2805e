//! Prompts: from what a request carries to block, sequence and tracking hashes.
