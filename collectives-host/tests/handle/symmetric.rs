//! Buffers in windows of their own.

use collectives_core::buffer::Buffer;
use collectives_core::dtype::DType;
use collectives_core::error::{Error, ErrorKind, Field, Misuse, Result};
use collectives_core::path::Path;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_core::scratch::Request;
use collectives_host::model::DeviceModel;
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use rstest::rstest;

use crate::{all, device, pool};

#[rstest]
fn views_of_a_symmetric_buffer_are_zero_copy(#[values(Inline, Asynchronous)] mode: StreamMode) {
    all(mode, 2, |collectives, stream| {
        let buffer = collectives.symmetric_buffer::<u32>(1000)?;
        let mut whole = buffer.clone();
        whole.write(&[1; 1000], stream)?;
        for range in [0..1000, 0..1, 3..500, 999..1000] {
            let mut view = buffer.slice(range)?;
            let report = collectives.all_reduce(&mut view, ReduceOp::Max, stream)?;
            assert_eq!((report.path, report.slot), (Path::ZeroCopy, None));
        }
        // In place: this rank's part, which lies at another offset on every rank.
        let start = 500 * collectives.rank().index();
        let mut part = buffer.slice(start..start + 500)?;
        let report = collectives.reduce_scatter(&buffer, &mut part, ReduceOp::Sum, stream)?;
        assert_eq!(report.path, Path::ZeroCopy);
        let ordinary = Buffer::from_slice(&device(collectives), &[7_u32; 500], stream)?;
        let mut target = buffer.clone();
        let report = collectives.all_gather(&ordinary, &mut target, stream)?;
        assert_eq!(
            report.path,
            Path::ZeroCopy,
            "only what it writes must lie in a window"
        );
        assert_eq!(buffer.read(stream)?, [7; 1000]);
        assert_eq!(collectives.stats().requests, 0);
        Ok(())
    });
}

#[rstest]
fn the_bytes_come_back_when_the_last_rank_has_dropped_its_handle(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    all(mode, 3, |collectives, stream| {
        let mut buffer = collectives.symmetric_buffer::<u64>(1 << 18)?;
        buffer.write(&vec![1; 1 << 18], stream)?;
        let keeps = collectives.rank() == Rank(1);
        let kept = keeps.then(|| buffer.clone());
        drop(buffer);
        let trimmed = collectives.trim()?;
        assert_eq!((trimmed.mapped_bytes, trimmed.held_bytes), (0, 2 << 20));
        if let Some(mut kept) = kept {
            kept.write(&vec![3; 1 << 18], stream)?;
            assert_eq!(kept.read(stream)?[77], 3);
        }
        let trimmed = collectives.trim()?;
        assert_eq!((trimmed.mapped_bytes, trimmed.held_bytes), (2 << 20, 0));
        assert_eq!(collectives.communicator_mut().window_count(), 0);
        Ok(())
    });
}

#[rstest]
fn a_window_or_offset_that_differs_is_the_same_error_everywhere(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    all(mode, 2, |collectives, stream| {
        let buffer = collectives.symmetric_buffer::<u8>(4096)?;
        let start = collectives.rank().index() * 16;
        let mut view = buffer.slice(start..start + 64)?;
        let device = device(collectives);
        let result = collectives.all_reduce(&mut view, ReduceOp::Sum, stream);
        let error = crate::error_of(result, &*device, stream);
        assert!(matches!(
            error.kind(),
            ErrorKind::Mismatch { rank: Rank(1), .. }
        ));
        // A stream keeps its asynchronous error.
        let stream = &device.create_stream()?;
        let mut view = buffer.slice(16..80)?;
        collectives.all_reduce(&mut view, ReduceOp::Sum, stream)?;
        Ok(())
    });
}

#[rstest]
fn out_of_memory_on_one_rank_is_out_of_memory_on_all(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    for poor in 0..3 {
        let world = crate::world(mode, 3).model(move |rank| {
            let model = DeviceModel::default().with_stream_mode(mode);
            match rank.index() == poor {
                true => model.with_budget(8 << 20),
                false => model,
            }
        });
        let results = world.run(|comm| {
            let mut collectives =
                collectives_core::collectives::Collectives::new(comm, pool("geometric")?);
            let error = collectives.symmetric_buffer::<u8>(64 << 20).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::OutOfMemory { rank, .. } if rank.index() == poor),
                "{error}"
            );
            let smaller = collectives.symmetric_buffer::<u8>(2 << 20)?;
            drop(smaller);
            let error = collectives.symmetric_buffer::<u8>(0).unwrap_err();
            assert_eq!(error.misuse(), Some(&Misuse::EmptyBuffer));
            let _deferred = collectives.close()?;
            Ok(())
        });
        for result in results {
            let result: Result<()> = result;
            result.unwrap();
        }
    }
}

/// What every rank gets of a buffer that one of them asks for otherwise, and that the next is had.
fn asked_otherwise(odd: impl Fn(&mut crate::Handle) -> Result<()> + Sync) -> Vec<ErrorKind> {
    all(Inline, 3, |collectives, _| {
        let asked = match collectives.rank() {
            Rank(1) => odd(collectives),
            _ => collectives.symmetric_buffer::<f32>(64).map(drop),
        };
        let error = asked.unwrap_err();
        assert!(!error.poisons(), "{error}");
        assert_eq!(error.operation(), Some("symmetric_buffer"));
        collectives.symmetric_buffer::<f32>(64)?;
        Ok(error.kind().clone())
    })
}

#[rstest]
#[case::more_bytes_than_addresses(usize::MAX)]
#[case::more_bytes_than_memory(1 << 50)]
#[case::nothing(0)]
fn a_count_that_one_rank_gets_wrong_is_the_same_error_everywhere(#[case] count: usize) {
    let expected = ErrorKind::Mismatch {
        rank: Rank(1),
        field: Field::Count,
        theirs: count.to_string(),
        ours: "64".to_owned(),
    };
    let kinds = asked_otherwise(|on| on.symmetric_buffer::<f32>(count).map(drop));
    assert_eq!(kinds, [(); 3].map(|()| expected.clone()));
}

#[test]
fn an_element_type_that_one_rank_gets_wrong_is_the_same_error_everywhere() {
    let expected = ErrorKind::Mismatch {
        rank: Rank(1),
        field: Field::DType,
        theirs: "u64".to_owned(),
        ours: "f32".to_owned(),
    };
    // As many bytes.
    let kinds = asked_otherwise(|on| on.symmetric_buffer::<u64>(32).map(drop));
    assert_eq!(kinds, [(); 3].map(|()| expected.clone()));
}

#[test]
fn ranks_in_different_calls_are_told_their_names() {
    let kinds = asked_otherwise(|on| {
        let reserved = on.reserve(&[Request::new(4096)]).map(drop);
        reserved.map_err(|error| Error::new(error.kind().clone()).during("symmetric_buffer"))
    });
    let expected = ErrorKind::Mismatch {
        rank: Rank(1),
        field: Field::Operation,
        theirs: "reserve".to_owned(),
        ours: "symmetric_buffer".to_owned(),
    };
    assert_eq!(kinds, [(); 3].map(|()| expected.clone()));
}

#[test]
fn a_size_that_no_rank_can_have_is_what_it_is() {
    all(Inline, 2, |collectives, _| {
        let count = usize::MAX;
        let error = collectives.symmetric_buffer::<f32>(count).unwrap_err();
        let dtype = DType::F32;
        assert_eq!(error.misuse(), Some(&Misuse::SizeOverflow { count, dtype }));
        let error = collectives.symmetric_buffer::<u8>(count).unwrap_err();
        let (rank, bytes) = (Rank(0), count);
        assert_eq!(*error.kind(), ErrorKind::OutOfMemory { rank, bytes });
        Ok(())
    });
}
