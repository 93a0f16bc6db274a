//! How many machines each set of a deployment is to have next. Pure.
//!
//! There are never more than are wished for and may be besides, and as few may lack as may. Sets of older templates shrink, those
//! of their machines first that are not available; the newest grows.

use crate::api::cluster::RolloutType;

/// A set, as far as it counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SetCount {
    /// Its name.
    pub name: String,
    /// Machines that it is to have.
    pub wished: usize,
    /// Machines that it has, those that come or go among them.
    pub there: usize,
    /// Of these, so many are available.
    pub available: usize,
    /// Of these, so many go.
    pub going: usize,
}

/// What a deployment wishes for.
#[derive(Clone, Copy, Debug)]
pub(super) struct DesiredDeployment {
    pub replicas: usize,
    /// Machines that may be there besides.
    pub surge: usize,
    /// Machines that may lack.
    pub lacking: usize,
    pub by: RolloutType,
    /// Whether machines are not replaced for now.
    pub paused: bool,
}

/// How many machines each set is to have next, where that is other than before. `old` are the oldest first.
pub(super) fn plan(wish: DesiredDeployment, newest: Option<&SetCount>, old: &[SetCount]) -> Vec<(String, usize)> {
    let mut next: Vec<(String, usize, usize)> =
        newest.into_iter().chain(old).map(|set| (set.name.clone(), set.wished, set.wished)).collect();
    let Some(newest) = newest else { return Vec::new() };
    match (wish.paused, wish.by) {
        (true, _) => paused(wish, &mut next),
        (false, RolloutType::OnDelete) => on_delete(wish, old, &mut next),
        (false, RolloutType::RollingUpdate) => rolling(wish, newest, old, &mut next),
    }
    let changed = next.into_iter().filter(|(_, before, after)| before != after);
    changed.map(|(name, _, after)| (name, after)).collect()
}

type ReplicaChanges = [(String, usize, usize)];

fn total(next: &ReplicaChanges) -> usize {
    next.iter().map(|(_, _, after)| after).sum()
}

/// Nothing is replaced: the newest grows, and the oldest shrink first.
fn paused(wish: DesiredDeployment, next: &mut ReplicaChanges) {
    let there = total(next);
    if there < wish.replicas
        && let Some((_, _, after)) = next.first_mut()
    {
        *after += wish.replicas - there;
    }
    shrink_to(wish.replicas, next);
}

/// The old ones first, the oldest of them before the others; the newest last.
fn shrink_to(most: usize, next: &mut ReplicaChanges) {
    let mut surplus = total(next).saturating_sub(most);
    let (newest, old) = next.split_at_mut(next.len().min(1));
    for (_, _, after) in old.iter_mut().chain(newest) {
        let less = surplus.min(*after);
        *after -= less;
        surplus -= less;
    }
}

/// Old machines stay until somebody deletes them; so many fewer are wished for then of their set, and more of the newest.
fn on_delete(wish: DesiredDeployment, old: &[SetCount], next: &mut ReplicaChanges) {
    let (first, rest) = next.split_at_mut(next.len().min(1));
    for ((_, _, after), set) in rest.iter_mut().zip(old) {
        *after = set.wished.min(set.there.saturating_sub(set.going));
    }
    let kept: usize = rest.iter().map(|(_, _, after)| *after).sum();
    if let Some((_, _, after)) = first.first_mut() {
        *after = wish.replicas.saturating_sub(kept);
    }
    shrink_to(wish.replicas, next);
}

fn rolling(wish: DesiredDeployment, newest: &SetCount, old: &[SetCount], next: &mut ReplicaChanges) {
    // With neither, nothing could ever be replaced.
    let surge = if wish.surge == 0 && wish.lacking == 0 { 1 } else { wish.surge };
    let least = wish.replicas.saturating_sub(wish.lacking);
    let most = wish.replicas + surge;
    let (first, rest) = next.split_at_mut(next.len().min(1));
    let Some((_, _, own)) = first.first_mut() else { return };
    // Machines of old sets that are wished for no more may still be there.
    let others: usize = old.iter().map(|set| set.wished.max(set.there)).sum();
    if newest.wished > wish.replicas {
        *own = wish.replicas;
    } else {
        let room = most.saturating_sub(newest.wished + others);
        *own = newest.wished + room.min(wish.replicas - newest.wished);
    }
    let available = |set: &SetCount| set.available.min(set.wished);
    // Those go first that are of no use.
    let mut all: usize = *own + old.iter().map(|set| set.wished).sum::<usize>();
    let not_yet = own.saturating_sub(available(newest));
    let mut spare = all.saturating_sub(least + not_yet);
    for ((_, _, after), set) in rest.iter_mut().zip(old) {
        let less = set.wished.saturating_sub(available(set)).min(spare);
        *after = set.wished - less;
        spare -= less;
        all -= less;
    }
    let working: usize = available(newest).min(*own) + old.iter().map(available).sum::<usize>();
    let mut spare = working.saturating_sub(least).min(all);
    for ((_, _, after), set) in rest.iter_mut().zip(old) {
        let less = (*after).min(available(set)).min(spare);
        *after -= less;
        spare -= less;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, wished: usize, available: usize) -> SetCount {
        SetCount { name: name.to_owned(), wished, there: wished, available, going: 0 }
    }

    fn wish(replicas: usize, surge: usize, lacking: usize) -> DesiredDeployment {
        DesiredDeployment { replicas, surge, lacking, by: RolloutType::RollingUpdate, paused: false }
    }

    fn planned(wish: DesiredDeployment, newest: &SetCount, old: &[SetCount]) -> Vec<(String, usize)> {
        plan(wish, Some(newest), old)
    }

    #[test]
    fn sets_grow_and_shrink_within_bounds() {
        let named = |list: &[(&str, usize)]| -> Vec<(String, usize)> {
            list.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect()
        };
        let rows = [
            // The first set, and its scale.
            (wish(3, 1, 0), set("n", 0, 0), vec![], named(&[("n", 3)])),
            (wish(1, 1, 0), set("n", 3, 3), vec![], named(&[("n", 1)])),
            // One more first, then one fewer.
            (wish(3, 1, 0), set("n", 0, 0), vec![set("o", 3, 3)], named(&[("n", 1)])),
            (wish(3, 1, 0), set("n", 1, 0), vec![set("o", 3, 3)], named(&[])),
            (wish(3, 1, 0), set("n", 1, 1), vec![set("o", 3, 3)], named(&[("o", 2)])),
            (wish(3, 1, 0), set("n", 1, 1), vec![set("o", 2, 2)], named(&[("n", 2)])),
            (wish(3, 1, 0), set("n", 3, 3), vec![set("o", 1, 1)], named(&[("o", 0)])),
            // One fewer first.
            (wish(3, 0, 1), set("n", 0, 0), vec![set("o", 3, 3)], named(&[("o", 2)])),
            (wish(3, 0, 1), set("n", 0, 0), vec![set("o", 2, 2)], named(&[("n", 1)])),
            // Neither is one besides: it would never end.
            (wish(3, 0, 0), set("n", 0, 0), vec![set("o", 3, 3)], named(&[("n", 1)])),
            // What is of no use goes at once.
            (wish(3, 1, 0), set("n", 1, 0), vec![set("o", 3, 1)], named(&[])),
            (wish(3, 1, 1), set("n", 1, 0), vec![set("o", 3, 1)], named(&[("o", 2)])),
            (wish(3, 1, 0), set("n", 1, 1), vec![set("o", 3, 2)], named(&[("o", 2)])),
            // Fewer are wished for meanwhile.
            (wish(1, 1, 0), set("n", 2, 2), vec![set("o", 2, 2)], named(&[("n", 1), ("o", 0)])),
            (wish(0, 1, 0), set("n", 2, 2), vec![set("o", 2, 2)], named(&[("n", 0), ("o", 0)])),
        ];
        for (wish, newest, old, wanted) in rows {
            assert_eq!(planned(wish, &newest, &old), wanted, "{wish:?} {newest:?} {old:?}");
        }
        // One that goes still takes its place.
        let going = SetCount { name: "o".into(), wished: 2, there: 3, available: 2, going: 1 };
        assert_eq!(planned(wish(3, 0, 1), &set("n", 0, 0), &[going]), []);
    }

    #[test]
    fn on_delete_a_new_machine_comes_for_each_that_somebody_deleted() {
        let wish = DesiredDeployment { by: RolloutType::OnDelete, ..wish(3, 1, 0) };
        assert_eq!(planned(wish, &set("n", 0, 0), &[set("o", 3, 3)]), []);
        let going = SetCount { name: "o".into(), wished: 3, there: 3, available: 2, going: 1 };
        assert_eq!(planned(wish, &set("n", 0, 0), &[going]), [("n".into(), 1), ("o".into(), 2)]);
        let fewer = DesiredDeployment { replicas: 2, ..wish };
        assert_eq!(planned(fewer, &set("n", 0, 0), &[set("o", 3, 3)]), [("o".into(), 2)]);
        let more = DesiredDeployment { replicas: 5, ..wish };
        assert_eq!(planned(more, &set("n", 0, 0), &[set("o", 3, 3)]), [("n".into(), 2)]);
    }

    #[test]
    fn a_pause_replaces_nothing_and_still_scales() {
        let wish = DesiredDeployment { paused: true, ..wish(3, 1, 0) };
        assert_eq!(planned(wish, &set("n", 0, 0), &[set("o", 3, 3)]), []);
        assert_eq!(
            planned(DesiredDeployment { replicas: 4, ..wish }, &set("n", 1, 1), &[set("o", 2, 2)]),
            [("n".into(), 2)]
        );
        assert_eq!(
            planned(DesiredDeployment { replicas: 1, ..wish }, &set("n", 1, 1), &[set("o", 2, 2)]),
            [("o".into(), 0)]
        );
        assert_eq!(plan(wish, None, &[set("o", 3, 3)]), []);
    }

    /// Whatever comes about, it ends, and is within its bounds at each step.
    #[test]
    fn every_rollout_ends_within_its_bounds() {
        for replicas in 0..6 {
            for (surge, lacking) in [(1, 0), (0, 1), (2, 1), (0, 0), (3, 3)] {
                let (mut newest, mut old) = (set("n", 0, 0), vec![set("a", replicas, replicas), set("b", 0, 0)]);
                let wish = wish(replicas, surge, lacking);
                let mut steps = 0;
                loop {
                    let next = planned(wish, &newest, &old);
                    if next.is_empty() && newest.available == newest.wished && newest.there == newest.wished {
                        break;
                    }
                    for (name, number) in next {
                        let set =
                            if name == "n" { &mut newest } else { old.iter_mut().find(|o| o.name == name).unwrap() };
                        set.available = set.available.min(number);
                        (set.wished, set.there) = (number, number);
                    }
                    let all = newest.there + old.iter().map(|set| set.there).sum::<usize>();
                    let working = newest.available + old.iter().map(|set| set.available).sum::<usize>();
                    assert!(all <= replicas + surge.max(1), "{wish:?} {newest:?} {old:?}");
                    assert!(
                        working + lacking >= replicas || old.iter().all(|set| set.wished == 0),
                        "{wish:?} {newest:?}"
                    );
                    newest.available = newest.wished;
                    steps += 1;
                    assert!(steps < 50, "{wish:?}");
                }
                assert_eq!((newest.wished, old[0].wished), (replicas, 0), "{wish:?}");
            }
        }
    }
}
