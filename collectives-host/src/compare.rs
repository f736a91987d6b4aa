//! Whether all ranks said the same: a pure function of the posts, so every rank finds the same.

use collectives_core::agreement::{mismatch, odd_one_out};
use collectives_core::collective::OpKind;
use collectives_core::error::{Field, Result};

use crate::post::{CAPTURED, GROUP, Head, Post, Side, UNEVEN, WINDOWS};

/// The posts of all ranks for one operation.
pub(crate) trait Posts {
    fn world_size(&self) -> usize;
    fn post(&self, rank: usize) -> &Post;
}

/// Checks that all ranks capture, or none, and that all posted groups of one length, or single
/// operations.
pub(crate) fn shapes(posts: &impl Posts) -> Result<()> {
    equal(
        posts,
        Field::Capture,
        |post| post.head.is(CAPTURED),
        |post| match post.head.is(CAPTURED) {
            true => "capturing".to_owned(),
            false => "not capturing".to_owned(),
        },
    )?;
    equal(posts, Field::GroupLength, group_length, |post| {
        group_length(post).to_string()
    })
}

fn group_length(post: &Post) -> usize {
    if post.head.is(GROUP) { post.count } else { 1 }
}

/// Checks that all ranks posted the same single operation.
///
/// A rank without elements on a side says nothing about that side's window.
pub(crate) fn operations(posts: &impl Posts) -> Result<()> {
    let head = |field: fn(&Head) -> String| move |post: &Post| field(&post.head);
    equal(
        posts,
        Field::Operation,
        |p| p.head.kind,
        head(|h| h.call_name()),
    )?;
    equal(
        posts,
        Field::DType,
        |p| p.head.dtype,
        head(|h| h.dtype.to_string()),
    )?;
    let name = head(|h| h.reduction_name().to_owned());
    equal(posts, Field::Reduction, |p| p.head.reduction, name)?;
    equal(posts, Field::Root, |p| p.head.root, head(|h| h.root_name()))?;
    let any = |flag| (0..posts.world_size()).any(|rank| posts.post(rank).head.is(flag));
    if posts.post(0).head.kind == OpKind::AllToAll {
        parts(posts)?;
    } else {
        if any(UNEVEN) {
            vectors(posts)?;
        }
        equal(posts, Field::Count, |p| p.count, |p| p.count.to_string())?;
    }
    if any(WINDOWS) {
        windows(posts, |rank| present(posts, rank, Which::Send))?;
        windows(posts, |rank| present(posts, rank, Which::Recv))?;
    }
    Ok(())
}

fn equal<T: PartialEq>(
    posts: &impl Posts,
    field: Field,
    value: impl Fn(&Post) -> T,
    show: impl Fn(&Post) -> String,
) -> Result<()> {
    let first = value(posts.post(0));
    if (1..posts.world_size()).all(|rank| value(posts.post(rank)) == first) {
        return Ok(());
    }
    let values: Vec<_> = (0..posts.world_size())
        .map(|rank| value(posts.post(rank)))
        .collect();
    let Some((odd, usual)) = odd_one_out(&values) else {
        return Ok(());
    };
    Err(mismatch(
        odd,
        field,
        show(posts.post(odd)),
        show(posts.post(usual)),
    ))
}

/// Checks that all ranks passed the same counts vector.
fn vectors(posts: &impl Posts) -> Result<()> {
    let world_size = posts.world_size();
    let vector = |rank: usize| -> Vec<usize> {
        let post = posts.post(rank);
        (0..world_size).map(|part| post.sends(part)).collect()
    };
    let vectors: Vec<_> = (0..world_size).map(vector).collect();
    match odd_one_out(&vectors) {
        None => Ok(()),
        Some((odd, usual)) => {
            let show = |rank: usize| format!("{:?}", vectors[rank]);
            Err(mismatch(odd, Field::Counts, show(odd), show(usual)))
        }
    }
}

/// Checks that every rank receives in an all-to-all what the others send it. The receiver is named.
fn parts(posts: &impl Posts) -> Result<()> {
    let world_size = posts.world_size();
    // If all are even, a count that differs is named as such.
    if (0..world_size).all(|rank| !posts.post(rank).head.is(UNEVEN)) {
        return equal(posts, Field::Count, |p| p.count, |p| p.count.to_string());
    }
    for to in 0..world_size {
        for from in 0..world_size {
            let (sent, received) = (posts.post(from).sends(to), posts.post(to).receives(from));
            if sent != received {
                let theirs = format!("{received} elements from rank {from}");
                return Err(mismatch(
                    to,
                    Field::Counts,
                    theirs,
                    format!("{sent} elements"),
                ));
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Which {
    Send,
    Recv,
}

/// A rank's operand, if it has one with elements.
fn present(posts: &impl Posts, rank: usize, which: Which) -> Option<Side> {
    let post = posts.post(rank);
    let side = match which {
        Which::Send => post.send,
        Which::Recv => post.recv,
    };
    (!side.addr.is_null()).then_some(side)
}

fn windows(posts: &impl Posts, side: impl Fn(usize) -> Option<Side>) -> Result<()> {
    let ranks: Vec<_> = (0..posts.world_size())
        .filter(|&rank| side(rank).is_some())
        .collect();
    let values: Vec<_> = ranks.iter().filter_map(|&rank| side(rank)).collect();
    let ordinals: Vec<_> = values.iter().map(|side| side.window).collect();
    if let Some((odd, usual)) = odd_one_out(&ordinals) {
        let show = |ordinal: u64| match ordinal {
            0 => "no window".to_owned(),
            _ => format!("window {}", ordinal - 1),
        };
        let (theirs, ours) = (show(ordinals[odd]), show(ordinals[usual]));
        return Err(mismatch(ranks[odd], Field::Window, theirs, ours));
    }
    let offsets: Vec<_> = values.iter().map(|side| side.offset).collect();
    if let Some((odd, usual)) = odd_one_out(&offsets) {
        let (theirs, ours) = (offsets[odd].to_string(), offsets[usual].to_string());
        return Err(mismatch(ranks[odd], Field::Offset, theirs, ours));
    }
    Ok(())
}
