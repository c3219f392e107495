//! Refunds that people ask for, and money that moved without us: F16, F18, F19 and what belongs to them.

mod approval;
mod asking;
mod by_hand;
mod end_to_end;
mod keys;
mod late_charge;
mod outside;
