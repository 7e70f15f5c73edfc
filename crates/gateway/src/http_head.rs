//! Reads the head of a plain HTTP request strictly enough that no two readers can disagree about it.
