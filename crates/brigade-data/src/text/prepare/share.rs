//! The pieces of a corpus, made by all processes that need them: whoever holds a piece's lock makes it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::spans::Span;
use super::tokenize::{Piece, PieceWriter};
use crate::text::prepare::cache::{CacheEntry, FileLock, LockWait};
use crate::{Error, Result};

/// How many threads of the pool one piece keeps busy: reading and parsing it is the work of one.
const THREADS_A_PIECE: usize = 8;

/// How often a process looks whether the others have finished.
const INTERVAL: Duration = Duration::from_millis(20);

/// The work on one corpus.
pub(super) struct SharedPieces<'a> {
    pub(super) place: &'a CacheEntry,
    pub(super) pieces: &'a [Vec<Span>],
    pub(super) writer: PieceWriter<'a>,
    pub(super) vocabulary_size: usize,
    /// How long a piece of another process is waited for that does not grow.
    pub(super) timeout: Duration,
}

impl SharedPieces<'_> {
    /// Sees to it that all pieces are there, and returns their folders. What another process has made, or an earlier one before it
    /// was killed, is kept. Ends early where the whole entry is there.
    pub(super) fn make(&self, threads: usize) -> Result<Vec<PathBuf>> {
        let total = self.pieces.iter().flatten().map(|span| span.bytes).sum();
        self.writer.progress.start(total, "tokenizing");
        self.place.create_pieces()?;
        let finished: Vec<AtomicBool> = self.pieces.iter().map(|_| AtomicBool::new(false)).collect();
        let failed = Mutex::new(None);
        thread::scope(|scope| {
            for _ in 0..threads.div_ceil(THREADS_A_PIECE).min(self.pieces.len()) {
                scope.spawn(|| {
                    let ended = || failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Err(error) = self.work(&finished, &|| ended().is_some()) {
                        ended().get_or_insert(error);
                    }
                });
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => return Err(error),
            None => self.writer.progress.finish(),
        }
        Ok((0..self.pieces.len()).map(|number| self.place.piece(number)).collect())
    }

    /// Makes pieces that nobody else makes, until all are there.
    fn work(&self, finished: &[AtomicBool], ended: &dyn Fn() -> bool) -> Result<()> {
        let mut wait = LockWait::new(self.timeout);
        loop {
            let mut busy = Vec::new();
            for number in 0..finished.len() {
                if ended() || self.place.folder().exists() {
                    return Ok(());
                }
                if !self.has(number, finished)? {
                    busy.push(number);
                }
            }
            let Some(last) = busy.last() else { return Ok(()) };
            let done = finished.iter().filter(|finished| finished.load(Ordering::Relaxed)).count();
            let bytes: u64 = busy.iter().map(|number| self.place.piece_bytes(*number)).sum();
            wait.check((done, bytes), &self.place.piece_lock(*last))?;
            thread::sleep(INTERVAL.min(self.timeout));
        }
    }

    /// Whether the piece is there, or else is made here; false where another process is making it.
    fn has(&self, number: usize, finished: &[AtomicBool]) -> Result<bool> {
        if finished[number].load(Ordering::Relaxed) {
            return Ok(true);
        }
        let _lock = match FileLock::try_acquire(&self.place.piece_lock(number)) {
            Ok(Some(lock)) => lock,
            Ok(None) => return Ok(false),
            Err(error) => return self.have_gone(error),
        };
        // Under the lock, nobody else changes the piece.
        if self.place.folder().exists() || finished[number].load(Ordering::Relaxed) {
            return Ok(true);
        }
        let (spans, folder) = (&self.pieces[number], self.place.piece(number));
        match Piece::open(&folder, self.vocabulary_size) {
            Ok(_) => self.writer.progress.advance(spans.iter().map(|span| span.bytes).sum()),
            Err(error) => {
                if folder.exists() {
                    tracing::warn!("making a piece of the token cache again: {error}");
                }
                if let Err(error) = self.place.build_piece(number, |folder| self.writer.write(spans, folder))
                {
                    return self.have_gone(error);
                }
            }
        }
        finished[number].store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// After an error: whether the whole entry came into being, and the pieces went, which may happen at any moment. Where they went without one,
    /// as another process found that the corpus is empty or has changed, they are made again.
    fn have_gone(&self, error: Error) -> Result<bool> {
        if self.place.folder().exists() {
            return Ok(true);
        }
        if self.place.has_pieces() {
            return Err(error);
        }
        self.place.create_pieces()?;
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::text::prepare::cache::{HashedFile, hashed_files};
    use crate::text::prepare::parallel::Workers;
    use crate::text::prepare::spans::{pieces, spans};
    use crate::text::prepare::split::Split;
    use crate::text::prepare::tokenize::Encoders;
    use crate::{Columns, Corpus, NoProgress, Tokenizer};

    struct Bench {
        folder: tempfile::TempDir,
        files: Vec<HashedFile>,
        tokenizer: Tokenizer,
        workers: Workers,
    }

    impl Bench {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let line = |index: usize| {
                format!("{{\"text\":\"document {index}\",\"prompt\":\"{}\"}}\n", "é ".repeat(index % 9))
            };
            fs::write(folder.path().join("a.jsonl"), (0..200).map(line).collect::<String>()).unwrap();
            (0..5).for_each(|file| {
                fs::write(folder.path().join(format!("b{file}.txt")), "text ".repeat(50)).unwrap()
            });
            let corpus = Corpus::from_sources(&[folder.path().display().to_string()]);
            let workers = Workers::start(2).unwrap();
            let cache = folder.path().join("cache");
            fs::create_dir(&cache).unwrap();
            let files = hashed_files(&corpus, &cache, Duration::from_secs(9), &workers, &NoProgress).unwrap();
            Self { folder, files, tokenizer: Tokenizer::bytes().unwrap(), workers }
        }

        fn pieces(&self, bytes: u64) -> Vec<Vec<Span>> {
            pieces(spans(&self.files, bytes).unwrap(), bytes)
        }

        fn make(&self, place: &CacheEntry, pieces: &[Vec<Span>], timeout: Duration) -> Result<Vec<PathBuf>> {
            self.shared(place, pieces, timeout, |shared| shared.make(17))
        }

        fn shared<T>(
            &self,
            place: &CacheEntry,
            pieces: &[Vec<Span>],
            timeout: Duration,
            work: impl FnOnce(&SharedPieces<'_>) -> T,
        ) -> T {
            let (files, columns) = (&self.files[..], &Columns::default());
            let encoders = Encoders::new(&self.tokenizer, None);
            let writer =
                PieceWriter { files, columns, encoders, workers: &self.workers, progress: &NoProgress };
            work(&SharedPieces { place, pieces, writer, vocabulary_size: 257, timeout })
        }

        fn place(&self, key: &str) -> CacheEntry {
            CacheEntry::new(&self.folder.path().join("cache"), key.into())
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_tokens_do_not_depend_on_the_pieces() {
        let bench = Bench::new();
        let mut before = None;
        for bytes in [1 << 20, 5000, 700, 20] {
            let pieces = bench.pieces(bytes);
            assert_eq!(pieces.len() > 100, bytes < 100);
            let folders = bench.make(&bench.place(&bytes.to_string()), &pieces, LONG).unwrap();
            let out = bench.folder.path().join(format!("out{bytes}"));
            fs::create_dir(&out).unwrap();
            let split = Split { fraction: 0.1, seed: 3 };
            let counts = split.write(&folders, &bench.tokenizer, &out).unwrap();
            assert_eq!((counts.train_documents, counts.validation_documents), (184, 21));
            let all = ["train.bin", "train.idx", "validation.bin", "validation.idx", "counts.json"];
            let all = all.map(|name| fs::read(out.join(name)).unwrap());
            assert!(before.get_or_insert_with(|| all.clone()) == &all, "{bytes}");
        }
    }

    #[test]
    fn finished_pieces_are_kept_and_only_missing_and_damaged_ones_are_made() {
        let bench = Bench::new();
        let (place, pieces) = (bench.place("k"), bench.pieces(1000));
        let folders = bench.make(&place, &pieces, LONG).unwrap();
        assert!(folders.len() > 5);
        let inodes = || folders.iter().map(|path| fs::metadata(path).unwrap().ino()).collect::<Vec<_>>();
        let tokens =
            || folders.iter().map(|path| fs::read(path.join("tokens.bin")).unwrap()).collect::<Vec<_>>();
        let (made, content) = (inodes(), tokens());
        fs::remove_dir_all(&folders[1]).unwrap();
        fs::write(folders[3].join("tokens.bin"), "x").unwrap();
        // What a process was writing when it was killed.
        fs::create_dir(folders[1].with_extension("building")).unwrap();
        fs::write(folders[1].with_extension("building").join("tokens.bin"), "half").unwrap();
        bench.make(&place, &pieces, LONG).unwrap();
        assert_eq!(tokens(), content);
        let same: Vec<bool> = made.iter().zip(inodes()).map(|(before, now)| *before == now).collect();
        assert!(same.iter().enumerate().all(|(piece, same)| *same || piece == 1 || piece == 3), "{same:?}");
    }

    #[test]
    fn a_piece_of_another_process_is_waited_for_until_the_deadline_and_taken_over_when_it_dies() {
        let bench = Bench::new();
        let (place, pieces) = (bench.place("k"), bench.pieces(1000));
        place.create_pieces().unwrap();
        let lock = FileLock::try_acquire(&place.piece_lock(2)).unwrap().unwrap();
        let error = bench.make(&place, &pieces, Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, Error::LockTimeout { .. }), "{error}");
        // All others were made meanwhile.
        let there: Vec<bool> = (0..pieces.len()).map(|piece| place.piece(piece).exists()).collect();
        assert!(there.iter().enumerate().all(|(piece, there)| *there == (piece != 2)), "{there:?}");
        drop(lock);
        bench.make(&place, &pieces, Duration::from_millis(100)).unwrap();
        assert!(place.piece(2).exists());
    }

    #[test]
    fn a_piece_that_grows_is_waited_for() {
        let bench = Bench::new();
        let (place, pieces) = (bench.place("k"), bench.pieces(1000));
        place.create_pieces().unwrap();
        let lock = RefCell::new(FileLock::try_acquire(&place.piece_lock(2)).unwrap());
        let building = place.piece(2).with_extension("building");
        fs::create_dir(&building).unwrap();
        let looks = Cell::new(0);
        // Asked before each piece.
        let grow = || {
            looks.set(looks.get() + 1);
            if looks.get() > 10 * pieces.len() {
                drop(lock.take());
            } else {
                fs::write(building.join("tokens.bin"), vec![0u8; looks.get()]).unwrap();
            }
            false
        };
        let finished: Vec<_> = pieces.iter().map(|_| AtomicBool::new(false)).collect();
        bench.shared(&place, &pieces, Duration::ZERO, |shared| shared.work(&finished, &grow)).unwrap();
        assert!(looks.get() > 10 * pieces.len() && place.piece(2).exists());
    }

    #[test]
    fn pieces_that_another_process_removes_are_no_error() {
        let bench = Bench::new();
        let (place, pieces) = (bench.place("k"), bench.pieces(1000));
        let full = || Error::io("create", place.piece(0), std::io::ErrorKind::StorageFull.into());
        let after = || bench.shared(&place, &pieces, LONG, |shared| shared.have_gone(full()));
        place.create_pieces().unwrap();
        assert!(matches!(after(), Err(Error::DiskFull { .. })));
        place.remove_pieces().unwrap();
        assert!(!after().unwrap() && place.has_pieces());
        place.remove_pieces().unwrap();
        fs::create_dir(place.folder()).unwrap();
        assert!(after().unwrap() && !place.has_pieces());
    }
}
