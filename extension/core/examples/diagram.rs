//! Prints the state diagram that README shows: `cargo run -p paylatch-core --example diagram`.

fn main() {
    print!("{}", paylatch_core::flow::diagram());
}
