//! Writing whole weights.

pub(crate) mod format;
pub(crate) mod shards;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use brigade_core::{BoxError, Error, NamedTensor};
use brigade_files::AtomicFile;
use brigade_sorted::SortedSet;

use crate::weights::error::WeightsError;
use crate::weights::mapping::{MappedParameter, WeightsMapping};
use crate::weights::piece::Panel;
use crate::weights::write::format::{WeightsDtype, WeightsFormat};
use crate::weights::write::shards::{Places, ShardFile, WeightsFiles, existing_weights};

/// Writes parameters in fp32. The same parameters give the same bytes. The file appears under its name only once it is whole.
///
/// # Errors
/// As [`WeightsWriter::create`], or if the file cannot be written.
pub fn save_safetensors(
    path: &Path,
    parameters: &[NamedTensor],
    mapping: &WeightsMapping,
) -> Result<(), WeightsError> {
    let shapes = parameters.iter().map(|tensor| (tensor.name.clone(), tensor.data.shape().to_vec()));
    let mut writer = WeightsWriter::create(path, mapping.parameters(shapes))?;
    parameters.iter().try_for_each(|tensor| writer.write(tensor))?;
    writer.finish()
}

/// Writes files of weights from parameters that come one after the other: in any order, none kept in memory, each to its place. A file appears
/// under its name only once it is whole; until then it takes the space of the new one beside the old one, and it is removed if the
/// writer is dropped.
pub struct WeightsWriter {
    files: Arc<WeightsFiles>,
    /// Those of the files that are written here.
    open: Vec<Option<AtomicFile>>,
    /// The parameters that are still to come.
    missing: SortedSet<String>,
}

impl WeightsWriter {
    /// Starts one file of these parameters in fp32; what has its name stays until the new one is whole.
    ///
    /// # Errors
    /// If the file cannot be created, if a parameter cannot be stored as it is to be, or if the parameters do not give each value
    /// of each tensor exactly once.
    pub fn create(
        path: &Path,
        parameters: impl IntoIterator<Item = MappedParameter>,
    ) -> Result<Self, WeightsError> {
        let files = WeightsFiles::new(path, parameters, WeightsFormat::ONE_FILE)?;
        Self::open(Arc::new(files), |_| true)
    }

    /// Starts those files, by number, that are to be written here.
    ///
    /// # Errors
    /// If one cannot be created.
    pub fn open(files: Arc<WeightsFiles>, is_here: impl Fn(usize) -> bool) -> Result<Self, WeightsError> {
        let create = |(number, file): (usize, &ShardFile)| {
            if !is_here(number) {
                return Ok(None);
            }
            let created = AtomicFile::create(&file.path);
            let begun = created.and_then(|new| new.file().write_all_at(&file.header, 0).map(|()| new));
            begun.map(Some).map_err(|source| io(&file.path, source))
        };
        let open = files.files.iter().enumerate().map(create).collect::<Result<Vec<_>, _>>()?;
        let here = (0..open.len()).filter(|number| open[*number].is_some());
        let missing = here.flat_map(|number| files.parameters_of(number)).map(|(name, _)| name.to_owned());
        let missing = missing.collect();
        Ok(Self { files, open, missing })
    }

    /// Writes files of these parameters, which are read one after the other: no more than one is in memory. The files are whole, in fp32 and one alone
    /// with the bytes that [`save_safetensors`] gives for the same values, and still to be [finished](Self::finish).
    ///
    /// # Errors
    /// As [`WeightsFiles::new`], if a parameter cannot be read or has other than its shape's number of values, or if a file
    /// cannot be written.
    pub fn filled(
        path: &Path,
        parameters: &[MappedParameter],
        format: WeightsFormat,
        read: impl Fn(usize) -> Result<Vec<f32>, BoxError>,
    ) -> Result<Self, WeightsError> {
        let files = WeightsFiles::new(path, parameters.iter().cloned(), format)?;
        let mut writer = Self::open(Arc::new(files), |_| true)?;
        for (index, parameter) in parameters.iter().enumerate() {
            writer.write_values(&parameter.name, &read(index).map_err(Error::Load)?)?;
        }
        Ok(writer)
    }

    /// The files that it is a writer of.
    pub fn files(&self) -> &Arc<WeightsFiles> {
        &self.files
    }

    /// Writes those values of a parameter that are in files here.
    ///
    /// # Errors
    /// If they cannot be written, or it is not among those that the files were begun with, or has another shape or
    /// type.
    pub fn write(&mut self, parameter: &NamedTensor) -> Result<(), WeightsError> {
        let values = parameter.data.as_slice();
        let values = values.map_err(|_| self.wrong(&parameter.name, "is not fp32"))?;
        self.write_values(&parameter.name, values)
    }

    fn write_values(&mut self, name: &str, values: &[f32]) -> Result<(), WeightsError> {
        let Some(Places { shape, pieces }) = self.files.places.get(name) else {
            return Err(self.wrong(name, "is not in the file"));
        };
        let mut here = pieces
            .iter()
            .filter_map(|(piece, file, begin)| {
                Some((piece, self.open[*file].as_ref()?, &self.files.files[*file].path, *begin))
            })
            .peekable();
        if here.peek().is_none() {
            return Ok(());
        }
        if !self.missing.remove(name) {
            return Err(self.wrong(name, "was already written"));
        }
        if values.len() != shape.iter().product::<usize>() {
            return Err(self.wrong(name, &format!("has {} values for the shape {shape:?}", values.len())));
        }
        let number = self.files.format.dtype;
        if let Some(value) = number.not_held(values) {
            let problem = format!(
                "has the value {value:e}, which {number} cannot represent; bf16 and fp32 \
            can"
            );
            return Err(self.wrong(name, &problem));
        }
        for (piece, file, path, begin) in here {
            let written = piece.panels(&mut |panel| write_panel(file.file(), number, begin, panel, values));
            written.map_err(|source| io(path, source))?;
        }
        Ok(())
    }

    /// Gives all files their names, in place of earlier ones. It is for a writer of all of them: where several write, each
    /// [commits](Self::commit) between [`WeightsFiles::begin`] and [`WeightsFiles::complete`].
    ///
    /// # Errors
    /// If that fails, or a parameter was not written.
    pub fn finish(self) -> Result<(), WeightsError> {
        let files = self.files.clone();
        files.begin()?;
        self.commit()?;
        files.complete()
    }

    /// Gives all files their names, unless there is a file of such a name, or weights of that name in another number of files.
    ///
    /// # Errors
    /// If there is one, which stays as it is, with [`ErrorKind::AlreadyExists`](std::io::ErrorKind::AlreadyExists); else as
    /// [`finish`](Self::finish).
    pub fn finish_new(self) -> Result<(), WeightsError> {
        let files = self.files.clone();
        if let Some(there) = existing_weights(&files.path) {
            return Err(io(&there, std::io::ErrorKind::AlreadyExists.into()));
        }
        self.end(AtomicFile::commit_new)?;
        files.complete()
    }

    /// Gives the files that are written here their names, in place of earlier ones.
    ///
    /// # Errors
    /// If that fails, or a parameter was not written.
    pub fn commit(self) -> Result<(), WeightsError> {
        self.end(AtomicFile::commit)
    }

    fn end(self, commit: fn(AtomicFile) -> std::io::Result<File>) -> Result<(), WeightsError> {
        if let Some(name) = self.missing.first() {
            return Err(self.wrong(name, "was not written"));
        }
        let Self { files, open, .. } = self;
        let written = files.files.iter().zip(open).filter_map(|(file, open)| Some((&file.path, open?)));
        written
            .into_iter()
            .try_for_each(|(path, open)| commit(open).map(drop).map_err(|source| io(path, source)))
    }

    fn wrong(&self, parameter: &str, problem: &str) -> WeightsError {
        wrong(&self.files.path, "parameter", parameter, problem)
    }
}

/// Writes the values of a panel to a tensor that begins at a byte of the file.
fn write_panel(
    file: &File,
    number: WeightsDtype,
    begin: usize,
    panel: Panel,
    values: &[f32],
) -> std::io::Result<()> {
    let Panel { in_tensor, in_parameter, rows, columns } = panel;
    let write = |row: usize, values: &[f32]| {
        let place = (begin + number.bytes() * (in_tensor + row * rows.in_tensor)) as u64;
        match number {
            WeightsDtype::Fp32 => file.write_all_at(bytemuck::cast_slice(values), place),
            _ => file.write_all_at(&number.encoded(values), place),
        }
    };
    if columns.in_parameter == 1 {
        let row = |row: usize| &values[in_parameter + row * rows.in_parameter..][..columns.size];
        return (0..rows.size).try_for_each(|index| write(index, row(index)));
    }
    let mut gathered = vec![0.0; rows.size * columns.size];
    for column in 0..columns.size {
        for row in 0..rows.size {
            gathered[row * columns.size + column] =
                values[in_parameter + row * rows.in_parameter + column * columns.in_parameter];
        }
    }
    if rows.in_tensor == columns.size {
        return write(0, &gathered);
    }
    (0..rows.size).try_for_each(|row| write(row, &gathered[row * columns.size..][..columns.size]))
}

pub(crate) fn io(path: &Path, source: std::io::Error) -> WeightsError {
    WeightsError::Io { path: path.to_owned(), source }
}

pub(crate) fn wrong(path: &Path, what: &'static str, name: &str, problem: &str) -> WeightsError {
    WeightsError::Unwritable {
        path: path.to_owned(),
        what,
        name: name.to_owned(),
        problem: problem.to_owned(),
    }
}
