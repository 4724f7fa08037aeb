//! Words in scripts of a shell.

/// A word that the shell leaves as it is.
pub(super) fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,+@%".contains(letter);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// A command on one line, as one would type it into a shell.
pub fn line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_words_that_were_written() {
        let words: Vec<String> =
            ["printf", "%s|", "a b", "it's", "$HOME", "x=[1,2]", "", "*", "a\nb", "`id`", "\\"]
                .map(str::to_owned)
                .to_vec();
        let output = std::process::Command::new("sh").args(["-c", &line(&words)]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), words[2..].join("|") + "|");
    }
}
