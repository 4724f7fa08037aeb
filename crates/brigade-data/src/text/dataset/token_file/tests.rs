use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::{Error, Example, Label};

fn write_split(folder: &Path, vocabulary_size: usize, documents: &[(Vec<u32>, Vec<u32>)]) {
    let mut writer = TokenWriter::create(folder, "split", vocabulary_size).unwrap();
    for (prompt, text) in documents {
        writer.push(prompt, true).unwrap();
        writer.push(text, false).unwrap();
        writer.end_document().unwrap();
    }
    writer.finish().unwrap();
}

fn tokens(file: &TokenFile) -> Vec<u32> {
    let mut tokens = vec![0; file.len()];
    file.read(0..file.len(), &mut tokens).unwrap();
    tokens
}

#[test]
fn what_is_written_is_read_in_both_widths() {
    for (vocabulary_size, width) in [(1 << 16, 2), ((1 << 16) + 1, 4)] {
        let folder = tempfile::tempdir().unwrap();
        let last = vocabulary_size as u32 - 1;
        write_split(
            folder.path(),
            vocabulary_size,
            &[(vec![1, 2], vec![3]), (vec![], vec![]), (vec![], vec![last])],
        );
        let file = TokenFile::open(folder.path(), "split").unwrap();
        assert_eq!(tokens(&file), [1, 2, 3, last]);
        assert_eq!(file.document_count(), 2);
        assert_eq!(file.document(1), 3..4);
        assert!(file.masked_within(1..4).eq(std::iter::once(1..2)));
        assert_eq!(file.vocabulary_size(), vocabulary_size);
        let from = [3, last as usize, vocabulary_size].map(|limit| file.first_from(limit).unwrap());
        assert_eq!(from, [Some(3), Some(last), None]);
        let size = std::fs::metadata(folder.path().join("split.bin")).unwrap().len();
        assert_eq!(size, 64 + 4 * width);
    }
}

#[test]
fn an_empty_split_can_be_opened() {
    let folder = tempfile::tempdir().unwrap();
    write_split(folder.path(), 10, &[]);
    let file = TokenFile::open(folder.path(), "split").unwrap();
    assert!(file.is_empty() && file.document_count() == 0);
}

#[test]
fn a_token_above_a_limit_is_found_far_into_a_split() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = vec![7; 200_000];
    text[150_000] = 9;
    write_split(folder.path(), 10, &[(vec![], text)]);
    let file = TokenFile::open(folder.path(), "split").unwrap();
    assert_eq!([9, 10].map(|limit| file.first_from(limit).unwrap()), [Some(9), None]);
}

#[test]
fn what_is_learned_ends_before_what_is_not_or_with_its_document() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = TokenWriter::create(folder.path(), "split", 10).unwrap();
    let documents: [&[(&[u32], bool)]; 3] = [
        &[(&[1], true), (&[2, 8], false), (&[3], true), (&[4, 7], false), (&[0], true)],
        &[(&[5], true), (&[5, 9], false)],
        // A text, which is learned whole.
        &[(&[5, 6], false)],
    ];
    for document in documents {
        document.iter().for_each(|(tokens, masked)| writer.push(tokens, *masked).unwrap());
        writer.end_document().unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(TokenFile::open(folder.path(), "split").unwrap().ends_of_learned().unwrap(), [7, 8, 9]);
}

#[test]
fn tokens_outside_the_vocabulary_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = TokenWriter::create(folder.path(), "split", 10).unwrap();
    assert!(writer.push(&[9, 10], false).unwrap_err().to_string().contains("token 10"));
}

/// The files of these documents, each with how many of its tokens at its beginning are masked, as the format says.
fn as_documented(documents: &[(Vec<u32>, usize)], labels: (u32, &[u64])) -> [Vec<u8>; 2] {
    let (mut tokens, mut starts, mut masked) = (Vec::new(), vec![0u64], Vec::<[u64; 2]>::new());
    for (ids, prompt) in documents {
        let start = tokens.len() as u64 / 2;
        tokens.extend(ids.iter().flat_map(|id| (*id as u16).to_le_bytes()));
        starts.push(start + ids.len() as u64);
        match masked.last_mut() {
            _ if *prompt == 0 => {}
            Some([_, end]) if *end == start => *end += *prompt as u64,
            _ => masked.push([start, start + *prompt as u64]),
        }
    }
    let number = |number: u64| number.to_le_bytes();
    let version = FORMAT_VERSION.to_le_bytes();
    let mut index = [INDEX_MAGIC.as_slice(), &version, &labels.0.to_le_bytes()].concat();
    index.extend([number(documents.len() as u64), number(masked.len() as u64)].concat());
    index.extend(starts.into_iter().chain(masked.into_iter().flatten()).flat_map(number));
    index.extend(labels.1.iter().copied().flat_map(number));
    tokens.chunks(1 << 20).for_each(|block| index.extend(blake3::hash(block).as_bytes()));
    let mut whole = [TOKENS_MAGIC.as_slice(), &version, &2u32.to_le_bytes()].concat();
    whole.extend(number(tokens.len() as u64 / 2));
    whole.extend([1000u32.to_le_bytes(), [0; 4]].concat());
    whole.extend(blake3::hash(&index).as_bytes());
    whole.extend(tokens);
    [whole, index]
}

fn files(folder: &Path) -> [Vec<u8>; 2] {
    ["split.bin", "split.idx"].map(|name| std::fs::read(folder.join(name)).unwrap())
}

/// More documents than buffers hold, with and without labels.
#[test]
fn files_have_the_bytes_of_the_format() {
    let document = |index: u32| {
        let ids: Vec<u32> = (0..1 + index % 4).map(|id| (id + index) % 1000).collect();
        let prompt = (index % 5) as usize % (ids.len() + 1);
        (ids, prompt)
    };
    let documents: Vec<_> = (0..30_000).map(document).collect();
    let folder = tempfile::tempdir().unwrap();
    let writer = || TokenWriter::create(folder.path(), "split", 1000).unwrap();
    let push = |writer: &mut TokenWriter, (ids, prompt): &(Vec<u32>, usize)| {
        writer.push(&ids[..*prompt], true).unwrap();
        writer.push(&ids[*prompt..], false).unwrap();
        writer.end_document().unwrap();
    };
    let mut plain = writer();
    documents.iter().for_each(|document| push(&mut plain, document));
    assert_eq!(plain.document_count(), documents.len());
    assert_eq!(plain.masked_count(), documents.iter().map(|(_, prompt)| *prompt as u64).sum::<u64>());
    plain.finish().unwrap();
    let expected = as_documented(&documents, (0, &[]));
    assert!(files(folder.path()) == expected);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");

    let mut labelled = writer();
    let labels: Vec<u64> = (0..documents.len() as u64).map(|index| index % 3).collect();
    for ((ids, prompt), label) in documents.iter().zip(&labels) {
        let learned = (0..ids.len()).map(|place| place >= *prompt).collect();
        let label = Some(Label::Class(*label as u32));
        labelled.push_example(&Example { ids: ids.clone(), learned, label, cut: 0 }).unwrap();
    }
    labelled.finish().unwrap();
    assert!(files(folder.path()) == as_documented(&documents, (1, &labels)));
}

#[test]
fn damage_that_was_not_looked_for_is_found_where_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    write_split(folder.path(), 1000, &[(vec![], vec![7; 1_200_000])]);
    let (path, _) = paths(folder.path(), "split");
    let mut bytes = std::fs::read(&path).unwrap();
    // In the second of three blocks of 2^19 tokens.
    bytes[64 + 2 * 600_000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let said = "split.bin: the tokens in its bytes 1048576 to 2097152 do not match their checksum";
    let error = TokenFile::open(folder.path(), "split").unwrap_err().to_string();
    assert!(error.contains(said), "{error}");
    let file = TokenFile::map(folder.path(), "split").unwrap();
    let read = |range: std::ops::Range<usize>| {
        let mut tokens = vec![0; range.len()];
        file.read(range, &mut tokens).map(|()| tokens)
    };
    assert_eq!(read(0..1 << 19).unwrap(), [7; 1 << 19]);
    assert_eq!(read(1 << 20..1_200_000).unwrap(), [7; 1_200_000 - (1 << 20)]);
    for _ in 0..2 {
        let error = read((1 << 19) - 1..(1 << 19) + 1).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("delete its folder"), "{error}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named_as_such() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/full", folder.path().join("split.bin")).unwrap();
    let mut writer = TokenWriter::create(folder.path(), "split", 10).unwrap();
    let error = writer.push(&vec![1; 1 << 20], false).unwrap_err();
    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    assert!(error.to_string().starts_with("the disk is full"), "{error}");
}

fn documents() -> impl Strategy<Value = Vec<(Vec<u32>, Vec<u32>)>> {
    let tokens = || prop::collection::vec(0u32..1000, 0..6);
    prop::collection::vec((tokens(), tokens()), 0..6)
}

/// Reads everything that an opened file offers.
fn read_all(file: &TokenFile) {
    assert_eq!(tokens(file).len(), file.len());
    for document in 0..file.document_count() {
        assert!(!file.document(document).is_empty());
    }
    assert!(file.masked_within(0..file.len()).all(|range| range.end <= file.len()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn documents_come_back(documents in documents()) {
        let folder = tempfile::tempdir().unwrap();
        write_split(folder.path(), 1000, &documents);
        let file = TokenFile::open(folder.path(), "split").unwrap();
        let mut masked = vec![false; file.len()];
        file.masked_within(0..file.len()).for_each(|range| masked[range].fill(true));
        let all = tokens(&file);
        let written: Vec<_> = documents.iter().filter(|(prompt, text)| prompt.len() + text.len() > 0).collect();
        prop_assert_eq!(file.document_count(), written.len());
        for (index, (prompt, text)) in written.into_iter().enumerate() {
            let range = file.document(index);
            prop_assert_eq!(&all[range.clone()], &[prompt.as_slice(), text].concat());
            let expected = [vec![true; prompt.len()], vec![false; text.len()]].concat();
            prop_assert_eq!(&masked[range], &expected);
        }
    }

    #[test]
    fn arbitrary_bytes_are_refused(
        mut tokens in prop::collection::vec(any::<u8>(), 0..300),
        mut index in prop::collection::vec(any::<u8>(), 0..300),
        headers: bool,
    ) {
        if headers {
            tokens.splice(..tokens.len().min(12), [TOKENS_MAGIC.as_slice(), &FORMAT_VERSION.to_le_bytes()].concat());
            index.splice(..index.len().min(12), [INDEX_MAGIC.as_slice(), &FORMAT_VERSION.to_le_bytes()].concat());
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("split.bin"), tokens).unwrap();
        std::fs::write(folder.path().join("split.idx"), index).unwrap();
        prop_assert!(TokenFile::open(folder.path(), "split").is_err());
    }

    /// Valid checksums around a wrong index: what the checks of the order are for.
    #[test]
    fn a_signed_but_wrong_index_never_panics(
        documents in documents(), entry in 0usize..64, value in prop_oneof![0u64..40, any::<u64>()],
    ) {
        let folder = tempfile::tempdir().unwrap();
        write_split(folder.path(), 1000, &documents);
        let (tokens_path, index_path) = paths(folder.path(), "split");
        let (mut tokens, mut index) = (std::fs::read(&tokens_path).unwrap(), std::fs::read(&index_path).unwrap());
        let at = 16 + entry * 8 % (index.len() - 16);
        index[at..at + 8].copy_from_slice(&value.to_le_bytes());
        tokens[32..64].copy_from_slice(blake3::hash(&index).as_bytes());
        std::fs::write(&tokens_path, tokens).unwrap();
        std::fs::write(&index_path, index).unwrap();
        if let Ok(file) = TokenFile::open(folder.path(), "split") {
            read_all(&file);
        }
    }

    #[test]
    fn any_damage_is_found(documents in documents(), in_tokens: bool, at: prop::sample::Index, cut: bool) {
        let folder = tempfile::tempdir().unwrap();
        write_split(folder.path(), 1000, &documents);
        let path = folder.path().join(if in_tokens { "split.bin" } else { "split.idx" });
        let mut bytes = std::fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        // The four spare bytes of the token file's header mean nothing.
        prop_assume!(cut || !in_tokens || !(28..32).contains(&at));
        if cut { bytes.truncate(at) } else { bytes[at] ^= 0x40 }
        std::fs::write(&path, bytes).unwrap();
        if let Ok(file) = TokenFile::open(folder.path(), "split") {
            // Only the vocabulary's size can change without notice, and not the width with it.
            prop_assert!(in_tokens && !cut && file.vocabulary_size() != 1000);
            read_all(&file);
        }
    }
}
