//! A closed vocabulary as a Rust enum: one list gives the variants, their spelling, parsing and enumeration.

/// A word that its vocabulary does not contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownWord {
    /// The vocabulary, such as `Outcome`.
    pub vocabulary: &'static str,
    /// The word that was given, cut to 64 characters.
    pub word: String,
}

impl std::fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} is no {}", self.word, self.vocabulary)
    }
}

impl std::error::Error for UnknownWord {}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// Every word, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The word as the database and the wire spell it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::words::UnknownWord;

            fn from_str(word: &str) -> Result<Self, Self::Err> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::words::UnknownWord {
                        vocabulary: stringify!($name),
                        word: word.chars().take(64).collect(),
                    }),
                }
            }
        }
    };
}
pub(crate) use words;
