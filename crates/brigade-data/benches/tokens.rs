//! Text to tokens, and tokens to sequences.
//!
//!     cargo bench -p brigade-data --bench tokens

use brigade_data::{RowOptions, Sampler, SequenceLayout, TokenSequences, TokenWriter, Tokenizer};
use criterion::{Criterion, Throughput};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// 1 MiB of text of some variety.
fn text() -> String {
    let mut text = String::new();
    for number in 0u64.. {
        if text.len() >= 1 << 20 {
            break;
        }
        let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        text += &format!("fn name_{word}(value: u32) -> u32 {{ value + {number} }}\n");
    }
    text
}

fn encode(criterion: &mut Criterion, text: &str) -> Outcome {
    let mut group = criterion.benchmark_group("encode");
    group.sample_size(10).throughput(Throughput::Bytes(text.len() as u64));
    let bpe = Tokenizer::train_bpe(1024, &[text[..1 << 16].to_owned()])?;
    for (name, tokenizer) in [("bytes", Tokenizer::bytes()?), ("bpe-1024", bpe)] {
        let mut ids = Vec::new();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                // A new encoder has no words in its memory.
                let mut encoder = tokenizer.encoder();
                ids.clear();
                encoder.encode(text, &mut ids).expect("it is text");
                ids.len()
            });
        });
    }
    group.finish();
    Ok(())
}

/// A global batch of sequences from a token file, in the order of the sampler.
fn read(criterion: &mut Criterion) -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut writer = TokenWriter::create(folder.path(), "tokens", 4096)?;
    for document in 0..256u32 {
        let tokens: Vec<u32> = (0..4096).map(|i| (i * 7919 + document) % 4096).collect();
        writer.push(&tokens, false)?;
        writer.end_document()?;
    }
    writer.finish()?;
    let (length, batch) = (256, 64);
    let mut group = criterion.benchmark_group("sequences");
    group.throughput(Throughput::Elements((length * batch) as u64));
    for layout in [SequenceLayout::Packed, SequenceLayout::Bfd, SequenceLayout::Documents] {
        let sequences = TokenSequences::open(folder.path(), "tokens", RowOptions::new(length, layout), 0)?;
        let sampler = Sampler::new(sequences.len(), 0, batch, batch)?;
        let mut step = 0;
        group.bench_function(layout.to_string(), |bencher| {
            bencher.iter(|| {
                step += 1;
                sampler
                    .global_batch(step)
                    .into_iter()
                    .map(|index| sequences.get(index))
                    .collect::<Result<Vec<_>, _>>()
            });
        });
    }
    group.finish();
    Ok(())
}

fn main() -> Outcome {
    let text = text();
    let mut criterion = Criterion::default().configure_from_args();
    encode(&mut criterion, &text)?;
    read(&mut criterion)?;
    criterion.final_summary();
    Ok(())
}
