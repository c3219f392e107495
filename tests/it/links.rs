//! Every link between our pages leads somewhere: to a file that is there, and to a heading in it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use paylatch_tests::cluster::root;

fn pages() -> Vec<PathBuf> {
    let in_folder = |folder: &Path| std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let all = in_folder(root()).chain(in_folder(&root().join("docs")));
    all.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// The lines of a page outside its fenced blocks.
fn prose(text: &str) -> Vec<&str> {
    let mut fenced = false;
    let is_prose = |line: &&str| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    };
    text.lines().filter(is_prose).collect()
}

/// What a heading is called in a link, as the usual renderers make it.
fn anchors(text: &str) -> BTreeSet<String> {
    let slug = |heading: &str| {
        let kept = heading.to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
    };
    let headings = prose(text).into_iter().filter(|line| line.starts_with('#'));
    headings.map(|line| slug(line.trim_start_matches('#').trim())).collect()
}

fn targets(text: &str) -> Vec<String> {
    let lines = prose(text).join("\n");
    lines.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let mut count = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for target in targets(&text).iter().filter(|target| !target.starts_with("http")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let there =
                std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{} links to {target}: {e}", page.display()));
            let known = anchors(&there);
            assert!(
                anchor.is_empty() || known.contains(anchor),
                "{} links to {target}; there are {known:?}",
                page.display()
            );
            count += 1;
        }
    }
    assert!(count > 20, "only {count} links were looked at");
}
