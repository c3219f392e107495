//! Fingerprints against made-up requests: whatever spelling they come in, and whatever else differs.

use paylatch_core::fingerprint::{Fingerprint, JSON, fingerprint};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

/// JSON as a tree, with numbers as so many hundredths.
#[derive(Debug, Clone, PartialEq)]
enum Tree {
    Null,
    Bool(bool),
    Hundredths(i64),
    Text(String),
    List(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        Just(Tree::Null),
        any::<bool>().prop_map(Tree::Bool),
        any::<i64>().prop_map(Tree::Hundredths),
        "[a-c\"\\\\/é\u{1}]{0,4}".prop_map(Tree::Text),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Tree::List),
            btree_map("[a-d\"é]{0,2}", inner, 0..4).prop_map(|members| Tree::Object(members.into_iter().collect())),
        ]
    })
}

/// How to spell the next thing: drawn from a seed.
struct Spelling(u64);

impl Spelling {
    fn of(&mut self, choices: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % choices
    }

    fn blank(&mut self) -> &'static str {
        ["", "", " ", "\n\t", "\r  "][self.of(5) as usize]
    }

    fn text(&mut self, text: &str) -> String {
        let mut out = "\"".to_owned();
        for character in text.chars() {
            match character {
                '"' | '\\' => out.extend(['\\', character]),
                '/' if self.of(2) == 0 => out += "\\/",
                plain if plain >= ' ' && self.of(3) > 0 => out.push(plain),
                escaped => out += &format!("\\u{:04x}", u32::from(escaped)),
            }
        }
        out + "\""
    }

    fn number(&mut self, hundredths: i64) -> String {
        let (sign, size) = (if hundredths < 0 { "-" } else { "" }, hundredths.unsigned_abs());
        match self.of(4) {
            0 if size.is_multiple_of(100) => format!("{sign}{}", size / 100),
            1 => format!("{sign}{size}e-2"),
            2 => format!("{sign}{}.{:02}000E+0", size / 100, size % 100),
            _ => format!("{sign}{}.{:02}", size / 100, size % 100),
        }
    }

    fn write(&mut self, tree: &Tree) -> String {
        let inner = match tree {
            Tree::Null => "null".to_owned(),
            Tree::Bool(value) => value.to_string(),
            Tree::Hundredths(value) => self.number(*value),
            Tree::Text(text) => self.text(text),
            Tree::List(elements) => {
                let elements: Vec<_> = elements.iter().map(|element| self.write(element)).collect();
                format!("[{}{}]", self.blank(), elements.join(","))
            }
            Tree::Object(members) => {
                let mut members: Vec<_> = members
                    .iter()
                    .map(|(name, value)| format!("{}{}:{}", self.blank(), self.text(name), self.write(value)))
                    .collect();
                if !members.is_empty() {
                    let at = self.of(members.len() as u64) as usize;
                    members.rotate_left(at);
                }
                format!("{{{}{}}}", members.join(","), self.blank())
            }
        };
        format!("{}{inner}{}", self.blank(), self.blank())
    }
}

fn of(text: &str) -> Fingerprint {
    fingerprint([("amount", Some("1")), (JSON, Some(text))])
}

proptest! {
    #[test]
    fn spelling_never_matters(tree in tree(), one: u64, other: u64) {
        prop_assert_eq!(of(&Spelling(one).write(&tree)), of(&Spelling(other).write(&tree)));
    }

    #[test]
    fn meaning_always_matters(left in tree(), right in tree(), seed: u64) {
        let same = of(&Spelling(seed).write(&left)) == of(&Spelling(seed.rotate_left(7)).write(&right));
        prop_assert_eq!(same, left == right);
    }

    #[test]
    fn any_bytes_have_one(names in vec("[a-c]{0,2}", 0..4), text in "\\PC{0,64}") {
        let fields: Vec<_> = names.iter().map(|name| (name.as_str(), Some(text.as_str()))).collect();
        let mut turned = fields.clone();
        turned.reverse();
        prop_assert_eq!(fingerprint(fields), fingerprint(turned));
        prop_assert_eq!(of(&text), of(&text));
    }
}
