//! What an installed system would boot, read from its boot loader's configuration.
//!
//! Two forms are understood: GRUB's `grub.cfg`, as far as distributions generate it, and Boot Loader Specification
//! entries (`loader/entries/*.conf`), which systemd-boot and the GRUB of Fedora and its kin read. Nothing of a
//! `grub.cfg` is run: conditions are passed over, so what a condition would choose is not followed.

use std::cmp::Ordering;
use std::collections::HashMap;

/// Most words looked at in one configuration.
const MAX_WORDS: usize = 100_000;
/// Longest word once its variables are put in, in bytes, more than a kernel takes; and most variables. Each may be made of
/// others, so that a few lines could ask for more than the machine has.
const MAX_EXPANDED: usize = 16 << 10;
const MAX_VARIABLES: usize = 1000;

/// A kernel with what it is given. Paths are those of the file system that the configuration lies on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootEntry {
    /// Kernel.
    pub kernel: String,
    /// Initial ramdisks, in order.
    pub initrds: Vec<String>,
    /// Kernel command line.
    pub options: String,
}

/// Variables of GRUB, from `grubenv` and from `set`.
pub type Variables = HashMap<String, String>;

/// `grubenv`: one `name=value` a line, `#` begins a comment or the padding.
pub fn environment(text: &str) -> Variables {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect()
}

/// The entry that a `grub.cfg` boots by itself: the one that `default` counts to, or the first that names a kernel.
/// `None` when there is none. Variables that the file sets are added to `variables`.
pub fn grub(text: &str, variables: &mut Variables) -> Option<BootEntry> {
    let mut entries: Vec<Option<BootEntry>> = Vec::new();
    let mut default = 0;
    let (mut depth, mut entry_at, mut submenu_at) = (0_usize, None, None);
    for statement in statements(text) {
        let words: Vec<String> = statement.iter().map(|word| word.expand(variables)).collect();
        let opens = statement.last().is_some_and(RawWord::opens);
        match words.first().map(String::as_str) {
            Some("menuentry") if submenu_at.is_none() && entry_at.is_none() => {
                entries.push(None);
                entry_at = Some(depth);
            }
            Some("submenu") if submenu_at.is_none() && entry_at.is_none() => {
                entries.push(None);
                submenu_at = Some(depth);
            }
            Some("set") => {
                if let Some((name, value)) = words.get(1).and_then(|word| word.split_once('=')) {
                    if name == "default"
                        && let Ok(number) = value.parse()
                    {
                        default = number;
                    }
                    if variables.len() < MAX_VARIABLES || variables.contains_key(name) {
                        variables.insert(name.to_owned(), value.to_owned());
                    }
                }
            }
            Some("linux" | "linuxefi" | "linux16") if entry_at.is_some() => {
                if let (Some(kernel), Some(last)) = (words.get(1), entries.last_mut()) {
                    let initrds = last.take().map(|entry| entry.initrds).unwrap_or_default();
                    let options = words[2..].iter().filter(|word| !word.is_empty()).cloned().collect::<Vec<_>>();
                    *last = Some(BootEntry { kernel: kernel.clone(), initrds, options: options.join(" ") });
                }
            }
            Some("initrd" | "initrdefi" | "initrd16") if entry_at.is_some() => {
                if let Some(Some(entry)) = entries.last_mut() {
                    entry.initrds = words[1..].iter().filter(|word| !word.is_empty()).cloned().collect();
                }
            }
            Some("}") => {
                depth = depth.saturating_sub(1);
                entry_at = entry_at.filter(|at| *at < depth);
                submenu_at = submenu_at.filter(|at| *at < depth);
                continue;
            }
            _ => {}
        }
        depth += usize::from(opens);
    }
    let chosen = entries.get(default).cloned().flatten();
    chosen.or_else(|| entries.into_iter().flatten().next())
}

/// The newest of some entries, by file name as the specification sorts them. Each is file name and content.
pub fn entries(files: &[(String, String)], variables: &Variables) -> Option<BootEntry> {
    let usable = files.iter().filter_map(|(name, text)| entry(text, variables).map(|entry| (name, entry)));
    // A rescue entry boots a system that finds its way on other hardware, not the one that was installed.
    let usable = usable.filter(|(name, _)| !name.contains("-rescue"));
    usable.max_by(|(one, _), (other, _)| versions(one, other)).map(|(_, entry)| entry)
}

fn entry(text: &str, variables: &Variables) -> Option<BootEntry> {
    let (mut found, mut options) = (BootEntry::default(), Vec::new());
    for line in text.lines().map(str::trim) {
        let Some((key, value)) = line.split_once(char::is_whitespace) else { continue };
        let value = RawWord::plain(value.trim()).expand(variables);
        match key {
            "linux" => found.kernel = value,
            "initrd" => found.initrds.extend(value.split_whitespace().map(str::to_owned)),
            "options" => options.extend(value.split_whitespace().map(str::to_owned)),
            _ => {}
        }
    }
    found.options = options.join(" ");
    (!found.kernel.is_empty()).then_some(found)
}

/// Compares runs of digits as numbers and all else by its characters.
fn versions(one: &str, other: &str) -> Ordering {
    let (mut left, mut right) = (one, other);
    loop {
        let (a, b) = (run(&mut left), run(&mut right));
        let order = match (a.as_bytes().first(), b.as_bytes().first()) {
            (None, None) => return Ordering::Equal,
            (Some(x), Some(y)) if x.is_ascii_digit() && y.is_ascii_digit() => {
                let (a, b) = (a.trim_start_matches('0'), b.trim_start_matches('0'));
                a.len().cmp(&b.len()).then_with(|| a.cmp(b))
            }
            _ => a.cmp(b),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// Takes the digits, or all up to the next digit, from the front.
fn run<'a>(text: &mut &'a str) -> &'a str {
    let digits = text.starts_with(|c: char| c.is_ascii_digit());
    let end = text.find(|c: char| c.is_ascii_digit() != digits).unwrap_or(text.len());
    let (taken, rest) = text.split_at(end);
    *text = rest;
    taken
}

/// A word with its variables not yet put in.
#[derive(Default)]
struct RawWord {
    /// Text, and whether `$` in it names a variable.
    pieces: Vec<(String, bool)>,
    quoted: bool,
}

impl RawWord {
    fn plain(text: &str) -> Self {
        Self { pieces: vec![(text.to_owned(), true)], quoted: false }
    }

    fn push(&mut self, c: char, expands: bool) {
        match self.pieces.last_mut() {
            Some((text, same)) if *same == expands => text.push(c),
            _ => self.pieces.push((c.to_string(), expands)),
        }
    }

    fn is_empty(&self) -> bool {
        self.pieces.is_empty() && !self.quoted
    }

    /// Whether it is the brace that opens a block.
    fn opens(&self) -> bool {
        !self.quoted && self.pieces.len() == 1 && self.pieces[0].0 == "{"
    }

    fn expand(&self, variables: &Variables) -> String {
        let mut text = String::new();
        for (piece, expands) in &self.pieces {
            if !expands {
                text.push_str(piece);
                continue;
            }
            let mut rest = piece.as_str();
            while let Some((before, after)) = rest.split_once('$') {
                text.push_str(before);
                let braced = after.strip_prefix('{').and_then(|after| after.split_once('}'));
                let (name, after) = braced.unwrap_or_else(|| {
                    let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                    after.split_at(end.unwrap_or(after.len()))
                });
                if let Some(value) = variables.get(name).filter(|value| text.len() + value.len() <= MAX_EXPANDED) {
                    text.push_str(value);
                }
                rest = after;
            }
            text.push_str(rest);
        }
        text
    }
}

/// Splits a script into statements of words, as GRUB's lexer does: quotes, backslashes, comments, `;` and line ends.
fn statements(text: &str) -> Vec<Vec<RawWord>> {
    let mut all = vec![Vec::new()];
    let mut word = RawWord::default();
    let mut count = 0;
    let mut chars = text.chars().peekable();
    let mut end = |word: &mut RawWord, all: &mut Vec<Vec<RawWord>>| {
        if !word.is_empty()
            && let Some(statement) = all.last_mut()
        {
            count += 1;
            statement.push(std::mem::take(word));
        }
        count < MAX_WORDS
    };
    while let Some(c) = chars.next() {
        match c {
            '\'' => {
                word.quoted = true;
                for c in chars.by_ref().take_while(|c| *c != '\'') {
                    word.push(c, false);
                }
            }
            '"' => {
                word.quoted = true;
                while let Some(c) = chars.next().filter(|c| *c != '"') {
                    match c {
                        '\\' => chars.next().into_iter().for_each(|c| word.push(c, false)),
                        c => word.push(c, true),
                    }
                }
            }
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some(c) => word.push(c, false),
            },
            '#' if word.is_empty() => while chars.next_if(|c| *c != '\n').is_some() {},
            '\n' | ';' => {
                if !end(&mut word, &mut all) {
                    break;
                }
                all.push(Vec::new());
            }
            '}' if word.is_empty() => {
                // A statement of its own, also on the line of another.
                all.push(vec![RawWord::plain("}")]);
                all.push(Vec::new());
            }
            '{' if word.is_empty() => {
                word.push('{', true);
                if !end(&mut word, &mut all) {
                    break;
                }
                all.push(Vec::new());
            }
            c if c.is_whitespace() => {
                if !end(&mut word, &mut all) {
                    break;
                }
            }
            c => word.push(c, true),
        }
    }
    end(&mut word, &mut all);
    all.retain(|statement| !statement.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn booted(text: &str) -> Option<(String, String, String)> {
        let entry = grub(text, &mut Variables::new())?;
        Some((entry.kernel, entry.initrds.join(" "), entry.options))
    }

    fn expected(kernel: &str, initrds: &str, options: &str) -> Option<(String, String, String)> {
        Some((kernel.into(), initrds.into(), options.into()))
    }

    #[test]
    fn a_generated_configuration_gives_its_default_entry() {
        let text = r#"
            # DO NOT EDIT
            if [ -s $prefix/grubenv ]; then
              load_env
            fi
            if [ "${next_entry}" ] ; then
               set default="${next_entry}"
            else
               set default="0"
            fi
            function gfxmode { set gfxpayload="${1}"; }
            menuentry 'Debian GNU/Linux' --class debian --class os $menuentry_id_option 'gnulinux-simple-1f' {
                load_video
                if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
                search --no-floppy --fs-uuid --set=root 1f00
                echo    'Loading Linux 6.1.0-40-amd64 ...'
                linux   /boot/vmlinuz-6.1.0-40-amd64 root=UUID=1f00 ro console=ttyS0,115200 ${extra_cmdline} quiet
                echo    'Loading initial ramdisk ...'
                initrd  /boot/initrd.img-6.1.0-40-amd64
            }
            submenu 'Advanced options' $menuentry_id_option 'gnulinux-advanced-1f' {
                menuentry 'Debian, recovery mode' { linux /boot/vmlinuz-6.1.0-40-amd64 root=UUID=1f00 ro single
                    initrd /boot/initrd.img-6.1.0-40-amd64
                }
            }
            menuentry 'Memory test' { linux16 /boot/memtest }
        "#;
        let wanted = expected(
            "/boot/vmlinuz-6.1.0-40-amd64",
            "/boot/initrd.img-6.1.0-40-amd64",
            "root=UUID=1f00 ro console=ttyS0,115200 quiet",
        );
        assert_eq!(booted(text), wanted);
        let third = text.replace(r#"set default="0""#, r#"set default="2""#);
        assert_eq!(booted(&third), expected("/boot/memtest", "", ""));
        let submenu = text.replace(r#"set default="0""#, r#"set default="1""#);
        assert_eq!(booted(&submenu), wanted, "a submenu names no kernel");
    }

    #[test]
    fn words_are_split_as_grub_does() {
        for (text, wanted) in [
            (
                "menuentry x { linux /k a=\"b c\" 'd $e' f\\ g\n initrd /i1 /i2 }",
                expected("/k", "/i1 /i2", "a=b c d $e f g"),
            ),
            (
                "set o=\"root=/dev/sda1 ro\"\nmenuentry x {\nlinux /k $o ${o}x $none\n}",
                expected("/k", "", "root=/dev/sda1 ro root=/dev/sda1 rox"),
            ),
            ("menuentry x { linuxefi /k a \\\n b\n initrdefi /i }", expected("/k", "/i", "a b")),
            ("menuentry 'a } b' { linux /k }", expected("/k", "", "")),
            ("linux /outside\n", None),
            ("menuentry x {", None),
            ("menuentry x { linux }", None),
            ("'", None),
            ("\"", None),
            ("\\", None),
            ("}}}} menuentry x { linux /k }", expected("/k", "", "")),
            ("", None),
        ] {
            assert_eq!(booted(text), wanted, "{text}");
        }
    }

    #[test]
    fn the_newest_entry_of_the_specification_is_booted() {
        let file = |version: &str| {
            let text = format!(
                "title Fedora\nversion {version}\nlinux /vmlinuz-{version}\ninitrd /initramfs-{version}.img $tuned_initrd\n\
                 options $kernelopts $tuned_params\noptions quiet\n"
            );
            (format!("abc-{version}.conf"), text)
        };
        let rescue = ("abc-0-rescue.conf".to_owned(), "linux /vmlinuz-0-rescue\n".to_owned());
        let broken = ("zzz-9.conf".to_owned(), "title no kernel\n".to_owned());
        let variables = environment("# GRUB Environment Block\nkernelopts=root=UUID=7 ro\nsaved_entry=x\n####");
        let files = [file("6.9.2"), file("6.10.1"), file("6.9.12"), rescue.clone(), broken];
        let found = entries(&files, &variables).expect("an entry");
        assert_eq!(found.kernel, "/vmlinuz-6.10.1");
        assert_eq!(found.initrds, ["/initramfs-6.10.1.img"]);
        assert_eq!(found.options, "root=UUID=7 ro quiet");
        assert_eq!(entries(&[rescue], &variables), None);
        assert_eq!(entries(&[], &variables), None);
    }

    #[test]
    fn variables_that_are_made_of_variables_come_to_an_end() {
        let doubled = "set a=\"$a$a\"\n".repeat(64);
        let text = format!("set a=0123456789\n{doubled}menuentry x {{\nlinux /k x$a\n}}\n");
        let (kernel, _, options) = booted(&text).expect("an entry");
        assert!(kernel == "/k" && options.starts_with("x0123456789") && options.len() <= MAX_EXPANDED + 1);
        let mut variables = Variables::new();
        grub(&(0..2 * MAX_VARIABLES).map(|number| format!("set v{number}=1\n")).collect::<String>(), &mut variables);
        assert_eq!(variables.len(), MAX_VARIABLES);
    }
}
