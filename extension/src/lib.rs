//! The paylatch extension.
