//! The editor of whoever works here, and the file that it gets: in a folder that nobody else can look into.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tempfile::TempDir;
use tokio::process::Command;

use crate::files;

/// Largest text that is read back, in bytes: more than the largest object that a server takes.
const TEXT_MAX: u64 = 8 << 20;
/// What says which editor, the first that does.
const VARIABLES: [&str; 2] = ["VISUAL", "EDITOR"];
/// Editors that are taken without it, the first that there is.
const USUAL: [&str; 3] = ["editor", "vi", "nano"];
/// Its own words for a program that cannot be run, and for one that there is not (sh, POSIX 2.8.2).
const NOT_RUN: [i32; 2] = [126, 127];

/// A text as a file, until it is dropped.
pub(super) struct EditorFile {
    folder: TempDir,
    file: PathBuf,
}

impl EditorFile {
    /// # Errors
    ///
    /// When the folder cannot be made.
    pub(super) fn new(name: &str) -> anyhow::Result<Self> {
        let private = Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix("slipway-edit-").permissions(private).tempdir();
        let folder = folder.context("a folder for the text")?;
        let plain = |char: char| if char.is_ascii_alphanumeric() || "-_.".contains(char) { char } else { '_' };
        // A file's name has 255 bytes at most.
        let name: String = name.chars().map(plain).take(200).collect();
        let file = folder.path().join(format!("{name}.yaml"));
        Ok(Self { folder, file })
    }

    /// # Errors
    ///
    /// When the disk refuses it.
    pub(super) fn write(&self, text: &str) -> anyhow::Result<()> {
        write(&self.file, text)
    }

    /// # Errors
    ///
    /// When it is gone, too long or no text.
    pub(super) fn read(&self) -> anyhow::Result<String> {
        files::read_text(&self.file, TEXT_MAX).with_context(|| self.file.display().to_string())
    }

    /// Puts a text as somebody saved it beside. Where it is.
    ///
    /// # Errors
    ///
    /// When the disk refuses it.
    pub(super) fn put_aside(&self, text: &str) -> anyhow::Result<PathBuf> {
        let beside = self.file.with_extension("saved.yaml");
        write(&beside, text)?;
        Ok(beside)
    }

    /// The folder stays; the file in it.
    pub(super) fn keep(self) -> PathBuf {
        let _ = self.folder.keep();
        self.file
    }

    /// Lets somebody edit it, until the editor ends.
    ///
    /// # Errors
    ///
    /// When there is no editor, or it says that it failed.
    pub(super) async fn edit(&self) -> anyhow::Result<()> {
        let editor = chosen(|name| std::env::var(name).ok(), is_on_path);
        let editor = editor.context("there is no editor: name yours in $VISUAL or $EDITOR")?;
        // What it writes beside the text is nobody else's either.
        let script = format!("umask 077; {editor} \"$1\"");
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script).arg("slipway").arg(&self.file);
        let ended = command.status().await.context("/bin/sh")?;
        match ended.code() {
            Some(0) => Ok(()),
            Some(code) if NOT_RUN.contains(&code) => {
                bail!("the editor {editor:?} cannot be run: name yours in $VISUAL or $EDITOR")
            }
            Some(code) => bail!("the editor {editor:?} ended with exit code {code}"),
            None => bail!("the editor {editor:?} was ended by a signal"),
        }
    }
}

/// A file for nobody else.
fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    let shown = || file.display().to_string();
    let open = || File::options().write(true).create(true).truncate(true).mode(0o600).open(file);
    open().and_then(|mut file| file.write_all(text.as_bytes())).with_context(shown)?;
    // An editor may have put another file there.
    fs::set_permissions(file, Permissions::from_mode(0o600)).with_context(shown)
}

/// The command of the editor, for a shell.
fn chosen(variable: impl Fn(&str) -> Option<String>, exists: impl Fn(&str) -> bool) -> Option<String> {
    let named = VARIABLES.iter().find_map(|name| variable(name).filter(|value| !value.trim().is_empty()));
    named.or_else(|| USUAL.into_iter().find(|name| exists(name)).map(str::to_owned))
}

fn is_on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program =
        |file: PathBuf| fs::metadata(file).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&path).any(|folder| is_program(folder.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_editor_is_the_one_that_is_named() {
        for (visual, editor, there, wanted) in [
            (Some("code --wait"), Some("vi"), "", Some("code --wait")),
            (None, Some("nano"), "vi", Some("nano")),
            (Some(" "), None, "vi nano", Some("vi")),
            (None, None, "editor vi", Some("editor")),
            (None, None, "", None),
        ] {
            let variable = |name: &str| if name == "VISUAL" { visual } else { editor }.map(str::to_owned);
            let exists = |name: &str| there.split(' ').any(|one| one == name);
            assert_eq!(chosen(variable, exists).as_deref(), wanted, "{visual:?} {editor:?} {there}");
        }
    }

    #[test]
    fn nobody_else_can_look_at_a_text() {
        let draft = EditorFile::new("secret-a/b").unwrap();
        draft.write("text").unwrap();
        let aside = draft.put_aside("mine").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&draft.file), mode(&aside), mode(draft.folder.path())), (0o600, 0o600, 0o700));
        assert_eq!(
            (draft.read().unwrap().as_str(), draft.file.file_name().unwrap().to_str()),
            ("text", Some("secret-a_b.yaml"))
        );
        fs::set_permissions(&draft.file, Permissions::from_mode(0o644)).unwrap();
        draft.write("again").unwrap();
        assert_eq!(mode(&draft.file), 0o600);
        let folder = draft.folder.path().to_owned();
        drop(draft);
        assert!(!folder.exists());
    }
}
