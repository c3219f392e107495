//! README shows the state machine as the code has it: its Mermaid block equals what the list of edges gives.

#![allow(clippy::unwrap_used, reason = "a test may stop")]

use std::path::Path;

use paylatch_core::flow;

const HOW: &str = "Put the output of `cargo run -p paylatch-core --example diagram` into README.md, between a line \
                   \"```mermaid\" and a line \"```\".";

/// The bodies of the fenced blocks of one language, in order.
fn blocks(markdown: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Option<String> = None;
    for line in markdown.lines() {
        match &mut open {
            Some(_) if line.trim() == "```" => found.extend(open.take()),
            Some(body) => {
                body.push_str(line.trim_end());
                body.push('\n');
            }
            None if line.trim().strip_prefix("```") == Some(language) => open = Some(String::new()),
            None => {}
        }
    }
    found
}

#[test]
fn readme_shows_the_state_machine_of_the_code() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = std::fs::read_to_string(&readme).unwrap_or_else(|e| panic!("{}: {e}. {HOW}", readme.display()));
    let shown: Vec<String> =
        blocks(&text, "mermaid").into_iter().filter(|block| block.starts_with("stateDiagram-v2")).collect();
    assert_eq!(shown.len(), 1, "README.md has {} Mermaid state diagrams, not one. {HOW}", shown.len());
    assert_eq!(shown[0], flow::diagram(), "README.md shows another state machine than the code has. {HOW}");
}

#[test]
fn a_fenced_block_is_found_among_others() {
    let text = "a\n```sh\nstateDiagram-v2\n```\n```mermaid\ngraph\n```\n```mermaid\nstateDiagram-v2  \n    x\n```\nb\n";
    assert_eq!(blocks(text, "mermaid"), ["graph\n", "stateDiagram-v2\n    x\n"]);
}

#[test]
fn the_diagram_has_every_state_and_each_edge_once() {
    let diagram = flow::diagram();
    for (from, to) in flow::EDGES {
        assert_eq!(diagram.matches(&format!(" {from} --> {to}: ")).count(), 1, "{from} --> {to}");
    }
    let arrows = 1 + flow::EDGES.len() + flow::Status::ALL.iter().filter(|status| status.is_terminal()).count();
    assert_eq!(diagram.matches(" --> ").count(), arrows);
    assert!(!diagram.contains("no such edge"));
}
