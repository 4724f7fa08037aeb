//! The commands that README.md and the book show.

use std::fs;
use std::path::Path;
use std::process::Command;

/// The lines of a document's shell blocks that begin with `brigade`.
fn commands(text: &str) -> Vec<&str> {
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines = blocks
        .flat_map(str::lines)
        .map(|line| line.split(" # ").next().unwrap_or_default().trim_end_matches([' ', '&']));
    lines.filter(|line| line.starts_with("brigade ")).collect()
}

/// Whether the binary knows these flags, and takes these values.
fn check(command: &str) {
    let words: Vec<&str> = command.split_whitespace().skip(1).map(|word| word.trim_matches('\'')).collect();
    for part in words.split(|word| *word == "--") {
        let arguments = part.strip_prefix(&["brigade"]).unwrap_or(part);
        // Help is printed only after all arguments before it have been understood.
        let output =
            Command::new(env!("CARGO_BIN_EXE_brigade")).args(arguments).arg("--help").output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn commands_of_the_documents_are_understood() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let book = fs::read_dir(root.join("docs/book/src")).unwrap().map(|entry| entry.unwrap().path());
    let mut count = 0;
    for document in book.chain([root.join("README.md")]) {
        let text = fs::read_to_string(document).unwrap();
        commands(&text).into_iter().for_each(|command| {
            check(command);
            count += 1;
        });
    }
    assert!(count > 20, "{count}");
}
