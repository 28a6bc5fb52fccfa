//! How text is cut into words before byte-level BPE, by the name in `tokenizer.ggml.pre`.
//!
//! The patterns are those of the models' own tokenizers in llama.cpp's wording. Patterns ending in
//! `\s+(?!\S)|\s+` (white space leaves its last character to the word after it) are written
//! without the look-ahead, which [`Step::leaves_space`] does instead: so every pattern runs in
//! linear time, whatever the text.

use std::ops::Range;

use regex::Regex;

use super::TokenizerFault;

/// Cuts text into words.
pub(super) struct PreTokenizer {
    steps: Vec<Compiled>,
    words_are_tokens: bool,
}

struct Compiled {
    regex: Regex,
    leaves_space: LeavesSpace,
}

/// Whether a match that is nothing but white space leaves its last character to the next word
/// (`\s+(?!\S)`), where a word follows.
#[derive(Clone, Copy, PartialEq)]
enum LeavesSpace {
    Never,
    Always,
    /// Unless it ends in a line break: there `\s*[\r\n]+` matched, which comes before.
    UnlessLineBreak,
}

/// One cut: every match, and every stretch between matches, is a word to the next step.
struct Step {
    pattern: &'static str,
    leaves_space: LeavesSpace,
}

/// What one value of `tokenizer.ggml.pre` means.
struct Family {
    /// All names that mean this.
    names: &'static [&'static str],
    steps: &'static [Step],
    /// A word that is a token is taken as it is, without looking at merges.
    words_are_tokens: bool,
    /// Whether a BOS is put first where the file does not say.
    adds_bos: bool,
}

const fn step(pattern: &'static str) -> Step {
    Step { pattern, leaves_space: LeavesSpace::Never }
}

const GPT2: Step = Step {
    pattern: r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+",
    leaves_space: LeavesSpace::Always,
};

const LLAMA3: Step = Step {
    pattern: r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    leaves_space: LeavesSpace::UnlessLineBreak,
};

const QWEN2: Step = Step {
    pattern: r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    leaves_space: LeavesSpace::UnlessLineBreak,
};

const QWEN35: Step = Step {
    pattern: r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    leaves_space: LeavesSpace::UnlessLineBreak,
};

/// Letters are upper or lower case only within ASCII here: a letter outside it is both, as
/// llama.cpp has it.
const TEKKEN: Step = Step {
    pattern: r"[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]*[\p{L}--[A-Z]]+|[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]+[\p{L}--[A-Z]]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
    leaves_space: LeavesSpace::UnlessLineBreak,
};

const GPT4O: Step = Step {
    pattern: r"[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]*[\p{L}--[A-Z]]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]+[\p{L}--[A-Z]]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
    leaves_space: LeavesSpace::UnlessLineBreak,
};

/// The letters of DeepSeek LLM's words, as its tokenizer lists them.
macro_rules! deepseek_letters {
    () => {
        concat!(
            r"\s?[",
            r"A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}",
            r"\u{1C4}-\u{293}\u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}",
            r"\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}",
            r"\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}",
            r"\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}",
            r"\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}\u{1E00}-\u{1F15}",
            r"\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}",
            r"\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}",
            r"\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}",
            r"\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}",
            r"\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}",
            r"\u{212A}-\u{212D}\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}",
            r"\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}",
            r"\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}",
            r"\u{A771}-\u{A787}\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}",
            r"\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}",
            r"\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}",
            r"\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}",
            r"]+",
        )
    };
}

/// Every pre-tokeniser that larql knows.
static FAMILIES: &[Family] = &[
    Family {
        names: &["default"],
        steps: &[step(r"[\p{P}$+<=>^~|]+"), GPT2, step(r"\p{N}+"), step("[0-9][0-9][0-9]")],
        words_are_tokens: false,
        adds_bos: false,
    },
    Family {
        names: &["gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "modern-bert", "gigachat"],
        steps: &[GPT2],
        words_are_tokens: false,
        adds_bos: false,
    },
    Family {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"],
        steps: &[step(r"\p{N}"), GPT2],
        words_are_tokens: false,
        adds_bos: false,
    },
    Family {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"],
        steps: &[LLAMA3],
        words_are_tokens: true,
        adds_bos: true,
    },
    Family {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        steps: &[LLAMA3],
        words_are_tokens: false,
        adds_bos: false,
    },
    Family { names: &["glm4", "glm5"], steps: &[LLAMA3], words_are_tokens: true, adds_bos: false },
    Family {
        names: &["qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open"],
        steps: &[QWEN2],
        words_are_tokens: false,
        adds_bos: false,
    },
    Family { names: &["qwen35"], steps: &[QWEN35], words_are_tokens: false, adds_bos: false },
    Family { names: &["tekken"], steps: &[TEKKEN], words_are_tokens: true, adds_bos: true },
    Family {
        names: &["gpt-4o", "llama4"],
        steps: &[GPT4O],
        words_are_tokens: false,
        adds_bos: false,
    },
    Family {
        names: &["deepseek-llm"],
        steps: &[
            step("[\r\n]"),
            step(deepseek_letters!()),
            // llama.cpp sees every white space as the same character, so that U+3000, which the
            // model's own class begins with, is never in it; nor those in the range from ࠀ below.
            step(r"\s?[!-/:-~！-／：-～‘-‟、-。]+"),
            step(r"\s+$"),
            step(r"[[一-龥ࠀ-一가-퟿]--\s]+"),
            step(r"\p{N}+"),
        ],
        words_are_tokens: false,
        adds_bos: false,
    },
    Family {
        names: &["deepseek-coder"],
        steps: &[
            step("[\r\n]"),
            step(r"\s?\p{L}+"),
            step(r"\s?\p{P}+"),
            step(r"[[一-龥ࠀ-一가-퟿]--\s]+"),
            step(r"\p{N}"),
        ],
        words_are_tokens: false,
        adds_bos: false,
    },
    Family {
        names: &["deepseek-v3", "joyai-llm", "hunyuan-dense"],
        steps: &[
            step(r"\p{N}{1,3}"),
            step("[一-龥぀-ゟ゠-ヿ]+"),
            Step {
                pattern: r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"##,
                leaves_space: LeavesSpace::UnlessLineBreak,
            },
        ],
        words_are_tokens: false,
        adds_bos: false,
    },
    Family {
        names: &["falcon"],
        steps: &[step(r"[\p{P}$+<=>^~|`]+"), GPT2, step("[0-9][0-9][0-9]")],
        words_are_tokens: false,
        adds_bos: false,
    },
];

/// The family of a name in `tokenizer.ggml.pre`.
fn family(name: &str) -> Result<&'static Family, TokenizerFault> {
    FAMILIES.iter().find(|f| f.names.contains(&name)).ok_or_else(|| {
        let known: Vec<&str> = FAMILIES.iter().flat_map(|f| f.names).copied().collect();
        TokenizerFault::UnknownPreTokenizer { found: name.to_owned(), known: known.join(", ") }
    })
}

/// Whether a model with the pre-tokeniser `name` begins with a BOS where its file does not say.
pub(super) fn adds_bos(name: &str) -> Result<bool, TokenizerFault> {
    family(name).map(|f| f.adds_bos)
}

impl PreTokenizer {
    /// The pre-tokeniser with one of GGUF's names.
    ///
    /// # Errors
    /// [`TokenizerFault::UnknownPreTokenizer`] with all the names that are known.
    pub(super) fn named(name: &str) -> Result<PreTokenizer, TokenizerFault> {
        let family = family(name)?;
        let mut steps = Vec::with_capacity(family.steps.len());
        for step in family.steps {
            let regex = Regex::new(step.pattern)
                .map_err(|e| TokenizerFault::Pattern { name: name.to_owned(), source: e })?;
            steps.push(Compiled { regex, leaves_space: step.leaves_space });
        }
        Ok(PreTokenizer { steps, words_are_tokens: family.words_are_tokens })
    }

    /// Whether a word that is a token is taken as it is, without looking at merges.
    pub(super) fn words_are_tokens(&self) -> bool {
        self.words_are_tokens
    }

    /// The words of `text`, in order, without gaps.
    pub(super) fn split(&self, text: &str) -> Vec<Range<usize>> {
        let mut words = Vec::with_capacity(text.len() / 4 + 1);
        words.push(0..text.len());
        for step in &self.steps {
            let mut next = Vec::with_capacity(words.len());
            for word in words {
                step.split(text, word, &mut next);
            }
            words = next;
        }
        words
    }
}

impl Compiled {
    /// Cuts `text[word]` at every match and appends the parts.
    fn split(&self, text: &str, word: Range<usize>, out: &mut Vec<Range<usize>>) {
        let part = &text[word.clone()];
        let mut at = 0;
        while let Some(found) = self.regex.find_at(part, at) {
            let end = found.end() - self.left_to_next(part, found.range());
            if at < found.start() {
                out.push(word.start + at..word.start + found.start());
            }
            out.push(word.start + found.start()..word.start + end);
            at = end;
        }
        if at < part.len() {
            out.push(word.start + at..word.end);
        }
    }

    /// Bytes at the end of a match that belong to the next word: see [`LeavesSpace`].
    fn left_to_next(&self, part: &str, found: Range<usize>) -> usize {
        let space = &part[found.clone()];
        let mut chars = space.chars();
        let Some(last) = chars.next_back() else { return 0 };
        let applies = match self.leaves_space {
            LeavesSpace::Never => false,
            LeavesSpace::Always => true,
            LeavesSpace::UnlessLineBreak => last != '\n' && last != '\r',
        };
        let leaves = applies
            && found.end < part.len()
            && !chars.as_str().is_empty()
            && last.is_whitespace()
            && chars.all(char::is_whitespace);
        if leaves { last.len_utf8() } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        let pre = PreTokenizer::named(name).unwrap();
        pre.split(text).into_iter().map(|r| &text[r]).collect()
    }

    #[test]
    fn every_family_compiles_and_keeps_all_text() {
        let text = "It's  5,000 \u{3000}日本語… \r\n\n x\u{301} \u{a0}\u{a0}y 'LL ¿qué? 🚀🚀 \t";
        for name in FAMILIES.iter().flat_map(|f| f.names) {
            assert_eq!(words(name, text).concat(), text, "{name}");
            assert_eq!(words(name, "").concat(), "", "{name}");
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = FAMILIES.iter().flat_map(|f| f.names).copied().collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn the_last_space_belongs_to_the_word_after_it() {
        assert_eq!(words("gpt-2", "a   b  "), ["a", "  ", " b", "  "]);
        assert_eq!(words("gpt-2", "a\n\nb"), ["a", "\n", "\n", "b"]);
        assert_eq!(words("llama-bpe", "a   b \n\n  c"), ["a", "  ", " b", " \n\n", " ", " c"]);
        assert_eq!(words("qwen2", "\t\tx"), ["\t", "\tx"]);
    }

    #[test]
    fn digits_by_family() {
        assert_eq!(words("llama-bpe", "12345"), ["123", "45"]);
        assert_eq!(words("qwen2", "123"), ["1", "2", "3"]);
        assert_eq!(words("smollm", "a 12"), ["a", " ", "1", "2"]);
        assert_eq!(words("gpt-2", "a 12"), ["a", " 12"]);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = PreTokenizer::named("bloom").err().unwrap().to_string();
        assert!(error.contains("bloom") && error.contains("llama-bpe"), "{error}");
    }
}
