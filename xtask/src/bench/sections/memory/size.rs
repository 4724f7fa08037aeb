//! A Llama of 1.1 billion parameters on two stages of two ranks: what they hold beside the plan, and how fast they load.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rustix::fs::{Advice, fadvise};
use serde_json::{Value, json};

use crate::bench::page::{Goal, Row, Samples, Section, Table, Unit};
use crate::bench::runner::{FOLDER, Runner, WARM_UP, metrics, results};

use crate::bench::sections::start::first_record;

pub const TITLE: &str = "A model of 1.1 billion parameters";

/// How many hundredths the memory may be off the plan.
const POINTS: f64 = 15.0;
/// Of the disk's reading speed, how much loading should reach.
const SHARE: f64 = 0.5;
const MODEL: &str = "size-model";
/// TinyLlama's shape.
const SHAPE: Shape =
    Shape { vocabulary: 32_000, width: 2048, inner: 5632, layers: 22, heads: 32, key_heads: 4 };
/// Values that are written or read at a time.
const CHUNK: usize = 4 << 20;

struct Shape {
    vocabulary: usize,
    width: usize,
    inner: usize,
    layers: usize,
    heads: usize,
    key_heads: usize,
}

pub fn measure(runner: &Runner) -> Result<Section> {
    let weights = make_model()?;
    let line = format!(
        "brigade train --model {FOLDER}/{MODEL} --lora-rank 16 --standalone --nproc-per-node 4 --pp 2 --dp 2 --zero 3 \
         --set compute.dtype=bf16 --recompute all --global-batch-size 4 --micro-batch-size 1 --steps 2 --set model.sequence_length=512 \
         --set train.validation_samples=4 --checkpoint-every 0 --quiet --out {FOLDER}/size"
    );
    let plan = format!("{line} --dry-run");
    let end = runner.start("size-plan", &plan)?.finish()?;
    end.succeeded()?;
    let planned = planned_peak(&end.stdout).with_context(|| format!("`{plan}` says no peak"))?;
    let [mut peak, mut disk, mut loading] = <[Samples; 3]>::default();
    for run in 1..=runner.runs {
        let (bytes, speed) = read_speed(&weights)?;
        disk.0.push(speed);
        forget(&File::open(&weights)?)?;
        let seconds = first_record(runner, "size", &line)?;
        let steps = metrics(&results("size"))?;
        let field = |name: &str| -> Result<f64> {
            let step = steps.first().and_then(|step| step[name].as_f64());
            step.with_context(|| format!("`{line}` recorded no {name}"))
        };
        loading.0.push(bytes / (seconds - field("step_seconds")?));
        peak.0.push(field("peak_rss_bytes")? / MIB);
        runner.progress(run, "resident", Unit::Mebibytes.show(peak.median().unwrap_or_default()));
    }
    let over = peak.median().map(|peak| 100.0 * (peak / planned - 1.0));
    let share = loading.over(&disk);
    let rows = vec![
        Row::of("planned for the rank that needs most", [Unit::Mebibytes.show(planned)], None),
        Row::of(
            "peak resident, of the rank that has most",
            [peak.cell(Unit::Mebibytes, "")],
            Goal::within(over, POINTS),
        ),
        Row::of("reading the file", [disk.cell(Unit::MebibytesPerSecond, "")], None),
        Row::of(
            "from the start of the command to its first step",
            [loading.cell(Unit::MebibytesPerSecond, "")],
            Goal::at_least(share, SHARE),
        ),
    ];
    Ok(Section {
        title: TITLE,
        text: "A Llama of TinyLlama's shape with random weights in bf16 (2.2 GB), adapters of rank 16, on two pipeline stages of two ranks under ZeRO-3. What `--dry-run` says \
               is beside the peak that the system counts, which holds the program as well. The file is read once from the disk by a plain program, and then by the ranks, between \
               them once; their time is that of everything until the first step begins."
            .into(),
        commands: vec![plan, line],
        tables: vec![Table::of(&["Brigade"], rows)],
        notes: Vec::new(),
    })
}

const MIB: f64 = (1 << 20) as f64;

/// A folder with configuration, tokenizer and random weights; gives the file of weights.
fn make_model() -> Result<std::path::PathBuf> {
    let folder = results(MODEL);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let Shape { vocabulary, width, inner, layers, heads, key_heads } = SHAPE;
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary, "hidden_size": width,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": key_heads,
        "max_position_embeddings": 2048, "tie_word_embeddings": false,
    });
    let weights = folder.join("model.safetensors");
    std::fs::write(folder.join("config.json"), config.to_string())
        .and_then(|()| std::fs::copy(results(WARM_UP).join("tokenizer.json"), folder.join("tokenizer.json")))
        .and_then(|_| write_weights(&weights, &SHAPE.tensors()))
        .with_context(|| format!("cannot write into {}", folder.display()))?;
    Ok(weights)
}

impl Shape {
    /// Names and shapes as `transformers` writes them.
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let Self { vocabulary, width, inner, layers, heads, key_heads } = *self;
        let keys = width / heads * key_heads;
        let ends = [
            ("model.embed_tokens.weight".to_owned(), vec![vocabulary, width]),
            ("lm_head.weight".into(), vec![vocabulary, width]),
            ("model.norm.weight".into(), vec![width]),
        ];
        let of_layer = [
            ("self_attn.q_proj", vec![width, width]),
            ("self_attn.k_proj", vec![keys, width]),
            ("self_attn.v_proj", vec![keys, width]),
            ("self_attn.o_proj", vec![width, width]),
            ("mlp.gate_proj", vec![inner, width]),
            ("mlp.up_proj", vec![inner, width]),
            ("mlp.down_proj", vec![width, inner]),
            ("input_layernorm", vec![width]),
            ("post_attention_layernorm", vec![width]),
        ];
        let layers = (0..layers).flat_map(|layer| {
            of_layer.clone().map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape))
        });
        ends.into_iter().chain(layers).collect()
    }
}

/// A safetensors file of random numbers in bf16, of about 0.01.
fn write_weights(path: &Path, tensors: &[(String, Vec<usize>)]) -> std::io::Result<()> {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(name.clone(), json!({ "dtype": "BF16", "shape": shape, "data_offsets": [start, end] }));
    }
    let header = Value::Object(header).to_string();
    let mut file = BufWriter::with_capacity(CHUNK, File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let (mut generator, mut values) = (ChaCha8Rng::seed_from_u64(1), vec![0u8; CHUNK]);
    for from in (0..end).step_by(CHUNK) {
        let values = &mut values[..CHUNK.min(end - from)];
        generator.fill_bytes(values);
        // Sign and digits are random, the exponent is that of 2⁻⁷.
        values.iter_mut().skip(1).step_by(2).for_each(|byte| *byte = (*byte & 0x80) | 0x3c);
        file.write_all(values)?;
    }
    file.into_inner()?.sync_all()
}

/// The largest "together" of a dry run's stages, in MiB.
fn planned_peak(text: &str) -> Option<f64> {
    let size = |(_, rest): (&str, &str)| {
        let mut words = rest.split_whitespace();
        let value: f64 = words.next()?.parse().ok()?;
        let unit = match words.next()? {
            "GiB" => 1024.0,
            "MiB" => 1.0,
            "KiB" => 1.0 / 1024.0,
            _ => return None,
        };
        Some(value * unit)
    };
    let sizes = text.lines().filter_map(|line| line.split_once("together ")).map(size);
    sizes.collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::max)
}

/// Bytes of a file in MiB, and MiB per second of reading it from the disk.
fn read_speed(path: &Path) -> Result<(f64, f64)> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    forget(&file)?;
    let (started, mut chunk, mut all) = (Instant::now(), vec![0; CHUNK], 0);
    loop {
        match file.read(&mut chunk).with_context(|| format!("cannot read {}", path.display()))? {
            0 => break,
            count => all += count,
        }
    }
    let all = all as f64 / MIB;
    Ok((all, all / started.elapsed().as_secs_f64()))
}

/// Makes the system drop what it keeps of a file in memory.
fn forget(file: &File) -> Result<()> {
    fadvise(file, 0, None, Advice::DontNeed).context("cannot drop a file from the system's memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_has_as_many_parameters_as_its_name_says() {
        let parameters: usize =
            SHAPE.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        assert_eq!(parameters, 1_100_048_384);
    }

    #[test]
    fn weights_are_small_numbers_in_a_file_of_their_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        write_weights(&path, &[("a".into(), vec![3, 5]), ("b".into(), vec![2])]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let fields: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
        assert_eq!(fields["b"], json!({ "dtype": "BF16", "shape": [2], "data_offsets": [30, 34] }));
        let values = &bytes[8 + header..];
        assert_eq!(values.len(), 34);
        assert!(values.chunks(2).all(|value| value[1] & 0x7f == 0x3c));
    }

    #[test]
    fn the_peak_is_that_of_the_stage_that_needs_most() {
        let text =
            "#   memory  parameters 1.0 MiB  together 512.0 MiB\n#   memory  together 1.5 GiB\nnothing\n";
        assert_eq!(planned_peak(text), Some(1536.0));
        assert_eq!(planned_peak("none"), None);
    }
}
