//! Has the migrations embedded again when one is added.

fn main() {
    println!("cargo:rerun-if-changed=../migrations");
}
