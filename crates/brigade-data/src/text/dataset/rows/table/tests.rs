use std::fs;

use proptest::prelude::*;

use super::*;
use crate::text::dataset::layout::TargetToken;
use crate::{TokenSequences, TokenWriter};

/// Documents of these lengths, of which the first tokens are masked.
fn split(folder: &Path, documents: &[(usize, usize)]) -> TokenFile {
    let mut writer = TokenWriter::create(folder, "split", 1 << 20).unwrap();
    let mut next = 0;
    for (masked, learned) in documents {
        for (count, is_masked) in [(masked, true), (learned, false)] {
            let ids: Vec<u32> = (next..next + *count as u32).collect();
            writer.push(&ids, is_masked).unwrap();
            next += *count as u32;
        }
        writer.end_document().unwrap();
    }
    writer.finish().unwrap();
    TokenFile::open(folder, "split").unwrap()
}

fn layouts() -> impl Strategy<Value = RowOptions> {
    let layout = prop_oneof![Just(SequenceLayout::Bfd), Just(SequenceLayout::Documents)];
    let long = prop_oneof![Just(LongExamples::Cut), Just(LongExamples::Split)];
    let target = prop_oneof![Just(TargetToken::Next), Just(TargetToken::Same)];
    (1usize..12, layout, long, target, 0usize..5).prop_map(|(length, layout, long, target, multiple)| {
        RowOptions { long, target, pad_to_multiple: multiple, ..RowOptions::new(length, layout) }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Tokens are their own numbers, so that it shows where each went.
    #[test]
    fn every_learned_token_is_a_target_once(
        documents in prop::collection::vec((0usize..6, 0usize..20), 1..30), options in layouts(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let file = split(folder.path(), &documents);
        let rows = TokenSequences::open(folder.path(), "split", options, 0).unwrap();
        let (mut targets, mut inputs) = (Vec::new(), 0);
        for row in (0..rows.len()).map(|row| rows.get(row).unwrap()) {
            prop_assert!(row.inputs.len() <= options.sequence_length);
            prop_assert_eq!(row.inputs.len(), options.padded(row.documents.iter().sum()));
            prop_assert!(options.layout == SequenceLayout::Bfd || row.documents.len() == 1);
            let mut start = 0;
            for length in &row.documents {
                // A document's tokens follow one another, and all are of the same one.
                let own = &row.inputs[start..start + length];
                let document = file.document(file.document_of(own[0] as usize));
                prop_assert!(own.windows(2).all(|pair| pair[1] == pair[0] + 1));
                prop_assert!(document.contains(&(own[length - 1] as usize)));
                start += length;
            }
            inputs += start as u64;
            let step = options.beyond_inputs() as u32;
            for at in (0..start).filter(|at| row.valid[*at]) {
                prop_assert_eq!(row.targets[at], row.inputs[at] + step);
                targets.push(row.targets[at] as usize);
            }
            prop_assert!(!row.valid[start..].contains(&true));
        }
        prop_assert_eq!(inputs, rows.row_counts().unwrap().inputs);
        targets.sort_unstable();
        let mut expected = Vec::new();
        for document in (0..file.document_count()).map(|index| file.document(index)) {
            let end = match options.long {
                LongExamples::Split => document.end,
                _ => document.end.min(document.start + options.sequence_length + options.beyond_inputs()),
            };
            let masked: Vec<_> = file.masked_within(document.clone()).flatten().collect();
            expected.extend((document.start + options.beyond_inputs()..end).filter(|token| !masked.contains(token)));
        }
        prop_assert_eq!(targets, expected);
    }

    #[test]
    fn any_damage_is_found(at: prop::sample::Index, cut: bool, documents in prop::collection::vec((0usize..3, 1usize..9), 1..9)) {
        let folder = tempfile::tempdir().unwrap();
        let file = split(folder.path(), &documents);
        let options = RowOptions::new(4, SequenceLayout::Bfd);
        let path = RowTable::path(folder.path(), "split", &options);
        RowTable::write(&path, &file, &options).unwrap();
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] ^= 0x40 }
        fs::write(&path, bytes).unwrap();
        prop_assert!(RowTable::open(&path, &file, &options).is_err());
        // It is made again.
        TokenSequences::open(folder.path(), "split", options, 0).unwrap();
        prop_assert_eq!(fs::read(&path).unwrap(), whole);
    }

    /// A valid checksum around wrong numbers: what the checks of the order are for.
    #[test]
    fn a_signed_but_wrong_file_never_panics(
        documents in prop::collection::vec((0usize..3, 1usize..9), 1..9),
        entry in 0usize..64,
        value in prop_oneof![0u64..40, any::<u64>()],
    ) {
        let folder = tempfile::tempdir().unwrap();
        let file = split(folder.path(), &documents);
        let options = RowOptions::new(4, SequenceLayout::Bfd);
        let path = RowTable::path(folder.path(), "split", &options);
        RowTable::write(&path, &file, &options).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let signed = bytes.len() - HASH_BYTES;
        let at = 16 + entry * 8 % (signed - 16);
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let mut hash = hasher(&file, &options);
        hash.update(&bytes[..signed]);
        bytes[signed..].copy_from_slice(hash.finalize().as_bytes());
        fs::write(&path, bytes).unwrap();
        if let Ok(table) = RowTable::open(&path, &file, &options) {
            for row in 0..table.len() {
                prop_assert!(table.parts(row).all(|part| part.end <= file.len()));
            }
        }
    }
}

#[test]
fn rows_of_other_tokens_are_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let options = RowOptions::new(4, SequenceLayout::Bfd);
    let path = RowTable::path(folder.path(), "split", &options);
    let file = split(folder.path(), &[(0, 3), (0, 4)]);
    RowTable::write(&path, &file, &options).unwrap();
    let other = split(folder.path(), &[(0, 3), (0, 2)]);
    assert!(RowTable::open(&path, &other, &options).is_err());
    let longer = RowOptions { sequence_length: 5, ..options };
    assert!(RowTable::open(&path, &file, &longer).is_err());
}

/// The bytes of the format, of more rows than buffers hold.
#[test]
fn a_file_has_the_bytes_of_the_format() {
    let folder = tempfile::tempdir().unwrap();
    let lengths: Vec<(usize, usize)> = (0..20_000).map(|document| (0, 2 + document % 5)).collect();
    let file = split(folder.path(), &lengths);
    let options = RowOptions::new(8, SequenceLayout::Documents);
    let path = RowTable::path(folder.path(), "split", &options);
    RowTable::write(&path, &file, &options).unwrap();
    let documents = (0..file.document_count() as u64).map(|index| file.document(index as usize));
    let parts = documents.flat_map(|part| [part.start as u64, part.end as u64]);
    let (count, inputs) = (lengths.len() as u64, (file.len() - lengths.len()) as u64);
    let numbers = parts.chain(0..=count).chain([count, count, 0, 0, 0, inputs]);
    let mut expected = [MAGIC.as_slice(), &VERSION.to_le_bytes(), &[0; 4]].concat();
    expected.extend(numbers.flat_map(u64::to_le_bytes));
    let hash = hasher(&file, &options).update(&expected).finalize();
    expected.extend(hash.as_bytes());
    assert!(fs::read(&path).unwrap() == expected);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "nothing else is left");
}
