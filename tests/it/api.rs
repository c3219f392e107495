//! The HTTP API of a real `paylatchd` over loopback.

mod server;
