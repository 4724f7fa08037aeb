//! What a finished run gives: predictions on every rank, and the whole model on one.

use burn::tensor::{Tensor, TensorData};

use super::{SAMPLES, on_ranks};
use crate::dataset::samples;
use crate::folder::WEIGHTS_FILE;
use crate::run::StartFrom;
use crate::settings::Settings;
use crate::test_model::layers;
use crate::training_setup::Training;

const WIDTH: usize = 6;

/// Trains four blocks on a mesh; gives rank 0's prediction, and that of the whole model on rank 0.
fn predicted(pp: usize, dp: usize, stage: u8) -> (TensorData, TensorData) {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = Settings::default();
    (settings.train.steps, settings.train.global_batch_size, settings.train.micro_batch_size) = (4, 4, 1);
    (settings.mesh.pp, settings.mesh.dp, settings.zero.stage) = (pp, dp, stage);
    on_ranks(pp * dp, folder.path(), &settings, StartFrom::Scratch, |session, _| {
        let data = samples(SAMPLES, |numbers, device| {
            let x: Vec<f32> = (0..WIDTH * numbers.len())
                .map(|i| ((numbers[i / WIDTH] * 7 + i) % 11) as f32 / 11.0)
                .collect();
            let x = Tensor::<2>::from_data(TensorData::new(x, [numbers.len(), WIDTH]), device);
            (x.clone(), x.sin())
        });
        let mut trained = session.train(layers(WIDTH, &["0", "1", "2", "3"]), Training::on(data))?;
        assert_eq!(trained.weights_file(), folder.path().join(WEIGHTS_FILE));
        let input = || Tensor::<2>::ones([2, WIDTH], &session.device());
        let output = trained.predict(input())?.into_data();
        let refused = trained.model_on(pp * dp).err().unwrap().to_string();
        assert!(refused.ends_with(&format!("there is no rank {0} in a world of {0}", pp * dp)), "{refused}");
        let whole = trained.model_on(0)?.map(|model| model.predict(input())).transpose()?;
        let whole = whole.map_or_else(|| output.clone(), Tensor::into_data);
        assert_eq!(trained.model().tensors().is_ok(), pp == 1 && stage < 3);
        Ok((output, whole))
    })
    .unwrap()
}

#[test]
fn a_trained_model_predicts_the_same_on_every_mesh() {
    let (output, whole) = predicted(1, 1, 0);
    assert_eq!(output, whole);
    for (pp, dp, stage) in [(1, 2, 0), (1, 2, 3), (2, 1, 0), (2, 2, 3)] {
        let (found, found_whole) = predicted(pp, dp, stage);
        let what = format!("pp {pp}, dp {dp}, ZeRO-{stage}");
        assert!(
            found.as_bytes() == output.as_bytes() && found_whole.as_bytes() == output.as_bytes(),
            "{what}"
        );
    }
}
