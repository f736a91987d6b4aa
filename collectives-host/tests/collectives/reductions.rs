//! Every reduction of every element type, against the oracle.

use crate::common::{call, input, on_every_rank, operand, oracle, reductions, same};
use collectives_core::collective::{Counts, Op};
use collectives_core::dtype::DType;
use collectives_core::rank::Rank;
use rstest::rstest;

const COUNTS: [usize; 5] = [1, 7, 40, 1000, 20_011];

fn inputs(dtype: DType, ranks: usize, count: usize) -> Vec<Vec<u8>> {
    (0..ranks).map(|rank| input(dtype, rank, count)).collect()
}

#[rstest]
fn all_reduce_gives_every_rank_the_fold(#[values(1, 2, 3, 4, 5)] ranks: usize) {
    on_every_rank(ranks, |rig| {
        let me = rig.rank();
        for dtype in DType::ALL {
            for op in reductions(dtype, me) {
                for (step, count) in COUNTS.into_iter().enumerate() {
                    let all = inputs(dtype, ranks, count);
                    let expected = oracle(dtype, op, &all);
                    // In place and not, at an alignment that differs between ranks.
                    let skip = (me + step) % 3;
                    let bytes = count * dtype.size();
                    let mut send = vec![0xee; skip + bytes];
                    send[skip..].copy_from_slice(&all[me]);
                    let mut recv = vec![0xaa; skip + bytes + 3];
                    let from = operand(&mut send[skip..]);
                    let to = operand(&mut recv[skip..skip + bytes]);
                    rig.run(&[call(
                        Op::AllReduce(op),
                        dtype,
                        from,
                        to,
                        Counts::Even(count),
                    )])
                    .unwrap();
                    assert!(
                        same(dtype, &recv[skip..skip + bytes], &expected),
                        "{op} of {count} {dtype}"
                    );
                    assert_eq!(
                        recv[skip + bytes..],
                        [0xaa; 3],
                        "nothing beyond the operand is written"
                    );
                    assert_eq!(send[skip..], all[me], "the input stays");
                    rig.run(&[call(
                        Op::AllReduce(op),
                        dtype,
                        from,
                        from,
                        Counts::Even(count),
                    )])
                    .unwrap();
                    assert!(
                        same(dtype, &send[skip..], &expected),
                        "{op} of {count} {dtype} in place"
                    );
                }
            }
        }
    });
}

#[rstest]
fn reduce_gives_the_root_the_fold(#[values(1, 2, 3, 5)] ranks: usize) {
    on_every_rank(ranks, |rig| {
        let me = rig.rank();
        for dtype in DType::ALL {
            for (op, root) in reductions(dtype, me).into_iter().zip((0..ranks).cycle()) {
                for count in COUNTS {
                    let all = inputs(dtype, ranks, count);
                    let mut send = all[me].clone();
                    let mut recv = vec![0xaa; if me == root { send.len() } else { 0 }];
                    let root_rank = Rank::new(root);
                    let op_ = Op::Reduce {
                        op,
                        root: root_rank,
                    };
                    let (from, to) = (operand(&mut send), operand(&mut recv));
                    rig.run(&[call(op_, dtype, from, to, Counts::Even(count))])
                        .unwrap();
                    if me == root {
                        assert!(
                            same(dtype, &recv, &oracle(dtype, op, &all)),
                            "{op} of {count} {dtype}"
                        );
                    }
                    assert_eq!(send, all[me]);
                }
            }
        }
    });
}

#[rstest]
fn reduce_scatter_gives_each_rank_its_part(
    #[values(1, 2, 3, 5)] ranks: usize,
    #[values(false, true)] uneven: bool,
) {
    on_every_rank(ranks, |rig| {
        let me = rig.rank();
        for dtype in DType::ALL {
            for op in reductions(dtype, me) {
                for count in COUNTS {
                    let vector: Vec<_> = (0..ranks)
                        .map(|rank| if uneven { count * rank / 2 } else { count })
                        .collect();
                    let counts = if uneven {
                        Counts::Uneven(&vector)
                    } else {
                        Counts::Even(count)
                    };
                    let total: usize = vector.iter().sum();
                    if total == 0 {
                        continue;
                    }
                    let size = dtype.size();
                    let all = inputs(dtype, ranks, total);
                    let begin: usize = vector[..me].iter().sum::<usize>() * size;
                    let end = begin + vector[me] * size;
                    let expected = &oracle(dtype, op, &all)[begin..end];
                    let mut send = all[me].clone();
                    let mut recv = vec![0xaa; vector[me] * size];
                    let (from, to) = (operand(&mut send), operand(&mut recv));
                    rig.run(&[call(Op::ReduceScatter(op), dtype, from, to, counts)])
                        .unwrap();
                    assert!(same(dtype, &recv, expected), "{op} of {count} {dtype}");
                    let to = if begin == end {
                        to
                    } else {
                        operand(&mut send[begin..end])
                    };
                    rig.run(&[call(Op::ReduceScatter(op), dtype, from, to, counts)])
                        .unwrap();
                    assert!(
                        same(dtype, &send[begin..end], expected),
                        "{op} of {count} {dtype} in place"
                    );
                    assert_eq!(send[..begin], all[me][..begin]);
                    assert_eq!(send[end..], all[me][end..]);
                }
            }
        }
    });
}
