//! How much of its own program the agent keeps in memory.
//!
//! Whatever ran once stays mapped, and counts as the agent's: that of a start is ten times what goes on running. It is read again from the
//! page cache when it is wanted.

use std::ops::Range;

use nix::libc;

/// Gives back what of the program's code is mapped.
pub(super) fn let_go() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for range in code(&maps) {
        // SAFETY: a private mapping of a file, which is executed and never written: the program is linked without text relocations. Its
        // pages are the file's, whose content cannot change while it is executed, so dropping them changes nothing that is read there
        // later (MADV_DONTNEED in madvise(2)).
        let _ = unsafe {
            libc::madvise(std::ptr::with_exposed_provenance_mut(range.start), range.len(), libc::MADV_DONTNEED)
        };
    }
}

/// Where code of files is mapped, of what proc_pid_maps(5) says.
fn code(maps: &str) -> impl Iterator<Item = Range<usize>> {
    maps.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (range, rights, path) = (fields.next()?, fields.next()?, fields.nth(3)?);
        let (start, end) = range.split_once('-')?;
        let at = |text| usize::from_str_radix(text, 16).ok();
        let range = at(start)?..at(end)?;
        (rights == "r-xp" && path.starts_with('/')).then_some(range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_files_is_found_and_nothing_that_was_written() {
        let maps = "\
            1000-2000 r--p 00000000 fe:00 11 /usr/local/lib/slipway/slipway\n\
            2000-5000 r-xp 00001000 fe:00 11 /usr/local/lib/slipway/slipway (deleted)\n\
            5000-6000 r--p 00004000 fe:00 11 /usr/local/lib/slipway/slipway\n\
            6000-7000 rw-p 00005000 fe:00 11 /usr/local/lib/slipway/slipway\n\
            8000-9000 r-xp 00000000 00:00 0\n\
            a000-b000 r-xp 00000000 00:00 0 [vdso]\n\
            c000-d000 rwxp 00000000 fe:00 12 /x\n";
        let found = || code(maps).map(|range| (range.start, range.end)).collect::<Vec<_>>();
        assert_eq!(found(), [(0x2000, 0x5000)]);
        // What was given back runs again.
        let_go();
        assert_eq!(found(), [(0x2000, 0x5000)]);
    }
}
