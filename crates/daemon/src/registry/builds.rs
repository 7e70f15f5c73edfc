//! Templates that keys built by the API: whose they are, their builds, the tags by which a build is found, and what builds said.

use offleash_supervisor::clock::UnixMs;
use rusqlite::{Connection, Row};

use super::Registry;
use super::error::RegistryError;
use super::making::{execute, found, insert};
use super::reading::column;

/// How many builds of a template are remembered that no tag names.
const KEPT_BUILDS: i64 = 20;

/// Of how many builds of a key it is remembered what they said.
const KEPT_LOGS: i64 = 100;

/// The tables, which a registry of an earlier daemon is given when it is opened. No reference to `keys`, as with sandboxes.
pub(super) const TABLES: &str = "
CREATE TABLE IF NOT EXISTS built_templates (
    id TEXT PRIMARY KEY,
    key_id TEXT NOT NULL,
    name TEXT NOT NULL,
    public INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS built_templates_by_name ON built_templates (key_id, name);

CREATE TABLE IF NOT EXISTS template_builds (
    id TEXT PRIMARY KEY,
    template TEXT NOT NULL REFERENCES built_templates (id) ON DELETE CASCADE,
    state TEXT NOT NULL,
    tags TEXT NOT NULL,
    cpus INTEGER,
    memory_mib INTEGER,
    bytes INTEGER NOT NULL,
    reason TEXT,
    failed_step TEXT,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    finished_ms INTEGER
) STRICT;
CREATE INDEX IF NOT EXISTS template_builds_by_template ON template_builds (template, created_ms);

CREATE TABLE IF NOT EXISTS template_tags (
    template TEXT NOT NULL REFERENCES built_templates (id) ON DELETE CASCADE,
    tag TEXT NOT NULL,
    build TEXT NOT NULL REFERENCES template_builds (id) ON DELETE CASCADE,
    assigned_ms INTEGER NOT NULL,
    PRIMARY KEY (template, tag)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS template_build_logs (
    build TEXT NOT NULL REFERENCES template_builds (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    level TEXT NOT NULL,
    step TEXT,
    line TEXT NOT NULL,
    PRIMARY KEY (build, number)
) STRICT, WITHOUT ROWID;
";

/// Where in its life a build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BuildState {
    /// It was asked for, and what it is to do was not said yet.
    Waiting,
    /// It waits for others to end.
    Queued,
    /// It goes on.
    Building,
    /// There are sandboxes to be made of it.
    Ready,
    /// It came to nothing.
    Failed,
}

words!(BuildState, "state of a build": Waiting = "waiting", Queued = "queued", Building = "building", Ready = "ready",
    Failed = "error");

/// A template as the registry has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltTemplateRow {
    /// Its id.
    pub id: String,
    /// Whose it is.
    pub key_id: String,
    /// What its owner calls it; no other one of the key is called so.
    pub name: String,
    /// Whether other keys may make sandboxes of it.
    pub public: bool,
    /// When it was first asked for.
    pub created_ms: UnixMs,
    /// When something of it changed last.
    pub updated_ms: UnixMs,
}

/// A build of a template as the registry has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateBuildRow {
    /// Its id, a UUID.
    pub id: String,
    /// The template.
    pub template: String,
    /// Where in its life it is.
    pub state: BuildState,
    /// The tags that it gets when it is ready, with blanks between them.
    pub tags: String,
    /// CPUs that sandboxes of it have, if that was said.
    pub cpus: Option<u32>,
    /// Memory that they have, MiB, if that was said.
    pub memory_mib: Option<u64>,
    /// What it takes on disk.
    pub bytes: u64,
    /// Why it came to nothing.
    pub reason: Option<String>,
    /// The step that failed, as SDKs know it.
    pub failed_step: Option<String>,
    /// When it was asked for.
    pub created_ms: UnixMs,
    /// When its state changed last.
    pub updated_ms: UnixMs,
    /// When it ended.
    pub finished_ms: Option<UnixMs>,
}

/// A tag of a template as the registry has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateTagRow {
    /// The template.
    pub template: String,
    /// The tag.
    pub tag: String,
    /// The build that it means.
    pub build: String,
    /// Since when.
    pub assigned_ms: UnixMs,
}

/// What a build said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildLogRow {
    /// The build.
    pub build: String,
    /// Its place in the log, from 0.
    pub number: u64,
    /// When.
    pub at_ms: UnixMs,
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// The step, as SDKs know it.
    pub step: Option<String>,
    /// The line.
    pub line: String,
}

impl Registry {
    /// All templates that keys built, by name.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn built_templates(&self) -> Result<Vec<BuiltTemplateRow>, RegistryError> {
        self.rows_of("SELECT * FROM built_templates ORDER BY name, id", [], template_row)
    }

    /// The template with that id; of `key`, also the one with that name.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn built_template(&self, key: &str, which: &str) -> Result<Option<BuiltTemplateRow>, RegistryError> {
        let query = "SELECT * FROM built_templates WHERE id = ?2 OR (key_id = ?1 AND name = ?2) ORDER BY id = ?2 DESC";
        let found = self.rows_of(query, [key, which], template_row)?;
        Ok(found.into_iter().next())
    }

    /// The builds of a template, the newest first.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn builds_of(&self, template: &str) -> Result<Vec<TemplateBuildRow>, RegistryError> {
        let query = "SELECT * FROM template_builds WHERE template = ?1 ORDER BY created_ms DESC, id";
        self.rows_of(query, [template], build_row)
    }

    /// The build with that id.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn template_build(&self, id: &str) -> Result<Option<TemplateBuildRow>, RegistryError> {
        Ok(self
            .rows_of("SELECT * FROM template_builds WHERE id = ?1", [id], build_row)?
            .pop())
    }

    /// The builds that are in that state.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn builds_in(&self, state: BuildState) -> Result<Vec<TemplateBuildRow>, RegistryError> {
        let query = "SELECT * FROM template_builds WHERE state = ?1";
        self.rows_of(query, [state.as_str()], build_row)
    }

    /// The tags of a template.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn tags_of(&self, template: &str) -> Result<Vec<TemplateTagRow>, RegistryError> {
        self.rows_of(
            "SELECT * FROM template_tags WHERE template = ?1 ORDER BY tag",
            [template],
            tag_row,
        )
    }

    /// All tags of all templates.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn all_tags(&self) -> Result<Vec<TemplateTagRow>, RegistryError> {
        self.rows_of("SELECT * FROM template_tags", [], tag_row)
    }

    /// What a build said, from the line of that number on, at most so many lines.
    ///
    /// # Errors
    /// When the registry cannot be read.
    pub fn build_log(&self, build: &str, from: u64, limit: u32) -> Result<Vec<BuildLogRow>, RegistryError> {
        let query = "SELECT * FROM template_build_logs WHERE build = ?1 AND number >= ?2 ORDER BY number LIMIT ?3";
        let from = i64::try_from(from).unwrap_or(i64::MAX);
        self.rows_of(query, (build, from, limit), log_row)
    }

    fn rows_of<T>(
        &self,
        query: &str,
        parameters: impl rusqlite::Params,
        read: fn(&Row<'_>) -> Result<T, RegistryError>,
    ) -> Result<Vec<T>, RegistryError> {
        let reader = self.reader();
        let tried = |error| RegistryError::of("reading builds of templates", error);
        let mut statement = reader.prepare_cached(query).map_err(tried)?;
        let mut rows = statement.query(parameters).map_err(tried)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(tried)? {
            found.push(read(row)?);
        }
        Ok(found)
    }
}

fn template_row(row: &Row<'_>) -> Result<BuiltTemplateRow, RegistryError> {
    Ok(BuiltTemplateRow {
        id: column(row, "id")?,
        key_id: column(row, "key_id")?,
        name: column(row, "name")?,
        public: column(row, "public")?,
        created_ms: column(row, "created_ms")?,
        updated_ms: column(row, "updated_ms")?,
    })
}

fn build_row(row: &Row<'_>) -> Result<TemplateBuildRow, RegistryError> {
    let unknown = |error: super::UnknownWord| RegistryError::damaged(error.to_string());
    let number = |name| Ok::<_, RegistryError>(column::<Option<i64>>(row, name)?.map(i64::cast_unsigned));
    Ok(TemplateBuildRow {
        id: column(row, "id")?,
        template: column(row, "template")?,
        state: column::<String>(row, "state")?.parse().map_err(unknown)?,
        tags: column(row, "tags")?,
        cpus: number("cpus")?.and_then(|cpus| u32::try_from(cpus).ok()),
        memory_mib: number("memory_mib")?,
        bytes: number("bytes")?.unwrap_or(0),
        reason: column(row, "reason")?,
        failed_step: column(row, "failed_step")?,
        created_ms: column(row, "created_ms")?,
        updated_ms: column(row, "updated_ms")?,
        finished_ms: column(row, "finished_ms")?,
    })
}

fn tag_row(row: &Row<'_>) -> Result<TemplateTagRow, RegistryError> {
    Ok(TemplateTagRow {
        template: column(row, "template")?,
        tag: column(row, "tag")?,
        build: column(row, "build")?,
        assigned_ms: column(row, "assigned_ms")?,
    })
}

fn log_row(row: &Row<'_>) -> Result<BuildLogRow, RegistryError> {
    Ok(BuildLogRow {
        build: column(row, "build")?,
        number: column::<i64>(row, "number")?.cast_unsigned(),
        at_ms: column(row, "at_ms")?,
        level: column(row, "level")?,
        step: column(row, "step")?,
        line: column(row, "line")?,
    })
}

/// Adds a template.
pub(super) fn add_template(connection: &Connection, row: &BuiltTemplateRow) -> Result<(), RegistryError> {
    let query = "INSERT INTO built_templates (id, key_id, name, public, created_ms, updated_ms)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let parameters = (
        &row.id,
        &row.key_id,
        &row.name,
        row.public,
        row.created_ms,
        row.updated_ms,
    );
    insert(connection, "a template of this name", query, parameters)
}

/// Says whether other keys may use a template.
pub(super) fn set_public(connection: &Connection, id: &str, public: bool, at: UnixMs) -> Result<(), RegistryError> {
    let query = "UPDATE built_templates SET public = ?2, updated_ms = ?3 WHERE id = ?1";
    found(execute(connection, query, (id, public, at))?, "template", id)
}

/// A template is gone, its builds, tags and lines with it.
pub(super) fn remove_template(connection: &Connection, id: &str) -> Result<(), RegistryError> {
    execute(connection, "DELETE FROM built_templates WHERE id = ?1", [id]).map(|_| ())
}

/// Adds a build.
pub(super) fn add_build(connection: &Connection, row: &TemplateBuildRow) -> Result<(), RegistryError> {
    let query =
        "INSERT INTO template_builds (id, template, state, tags, cpus, memory_mib, bytes, created_ms, updated_ms)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    let parameters = (
        &row.id,
        &row.template,
        row.state.as_str(),
        &row.tags,
        row.cpus,
        row.memory_mib.map(u64::cast_signed),
        row.bytes.cast_signed(),
        row.created_ms,
        row.updated_ms,
    );
    insert(connection, "a build of this id", query, parameters)?;
    let oldest = "DELETE FROM template_builds WHERE template = ?1 AND state IN ('ready', 'error', 'waiting')
        AND id NOT IN (SELECT build FROM template_tags WHERE template = ?1)
        AND id NOT IN (SELECT id FROM template_builds WHERE template = ?1 ORDER BY created_ms DESC, id LIMIT ?2)";
    execute(connection, oldest, (&row.template, KEPT_BUILDS))?;
    let logs = "DELETE FROM template_build_logs WHERE build IN (
        SELECT other.id FROM template_builds AS other JOIN built_templates ON built_templates.id = other.template
        WHERE built_templates.key_id = (SELECT key_id FROM built_templates WHERE id = ?1)
            AND other.state IN ('ready', 'error')
        ORDER BY other.created_ms DESC, other.id LIMIT -1 OFFSET ?2)";
    execute(connection, logs, (&row.template, KEPT_LOGS)).map(|_| ())
}

/// A build is in another state. `Stale` if it is gone, or was in none of `before`.
pub(super) fn set_build(
    connection: &Connection,
    row: &TemplateBuildRow,
    before: &[BuildState],
) -> Result<(), RegistryError> {
    let words: Vec<String> = before.iter().map(|state| format!("'{state}'")).collect();
    let query = format!(
        "UPDATE template_builds SET state = ?2, bytes = ?3, reason = ?4, failed_step = ?5, updated_ms = ?6,
            finished_ms = ?7 WHERE id = ?1 AND state IN ({})",
        words.join(", ")
    );
    let parameters = (
        &row.id,
        row.state.as_str(),
        row.bytes.cast_signed(),
        &row.reason,
        &row.failed_step,
        row.updated_ms,
        row.finished_ms,
    );
    found(execute(connection, &query, parameters)?, "build", &row.id)
}

/// Tags mean a build from now on.
pub(super) fn assign_tag(connection: &Connection, row: &TemplateTagRow) -> Result<(), RegistryError> {
    let query = "INSERT INTO template_tags (template, tag, build, assigned_ms) VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT (template, tag) DO UPDATE SET build = ?3, assigned_ms = ?4";
    execute(
        connection,
        query,
        (&row.template, &row.tag, &row.build, row.assigned_ms),
    )?;
    let touched = "UPDATE built_templates SET updated_ms = ?2 WHERE id = ?1";
    execute(connection, touched, (&row.template, row.assigned_ms)).map(|_| ())
}

/// A tag means nothing any more.
pub(super) fn remove_tag(connection: &Connection, template: &str, tag: &str) -> Result<(), RegistryError> {
    let query = "DELETE FROM template_tags WHERE template = ?1 AND tag = ?2";
    execute(connection, query, (template, tag)).map(|_| ())
}

/// Adds a line, unless its build is gone.
pub(super) fn add_log(connection: &Connection, row: &BuildLogRow) -> Result<(), RegistryError> {
    let query = "INSERT OR IGNORE INTO template_build_logs (build, number, at_ms, level, step, line)
        SELECT id, ?2, ?3, ?4, ?5, ?6 FROM template_builds WHERE id = ?1";
    let parameters = (
        &row.build,
        row.number.cast_signed(),
        row.at_ms,
        &row.level,
        &row.step,
        &row.line,
    );
    execute(connection, query, parameters).map(|_| ())
}

#[cfg(test)]
mod tests {
    use offleash_store::{HostIdentity, StateDirectory};

    use super::super::{Change, Registry, RegistryError};
    use super::*;

    const UNDER_WAY: &[BuildState] = &[BuildState::Building];

    fn template(id: &str, key: &str, name: &str) -> Change {
        Change::AddTemplate(Box::new(BuiltTemplateRow {
            id: id.to_owned(),
            key_id: key.to_owned(),
            name: name.to_owned(),
            public: false,
            created_ms: 1,
            updated_ms: 1,
        }))
    }

    fn build(id: &str, template: &str, state: BuildState) -> TemplateBuildRow {
        TemplateBuildRow {
            id: id.to_owned(),
            template: template.to_owned(),
            state,
            tags: "default v1".to_owned(),
            cpus: Some(2),
            memory_mib: None,
            bytes: 7,
            reason: None,
            failed_step: None,
            created_ms: 1,
            updated_ms: 1,
            finished_ms: None,
        }
    }

    fn tag(template: &str, tag: &str, build: &str) -> Change {
        Change::AssignTag(TemplateTagRow {
            template: template.to_owned(),
            tag: tag.to_owned(),
            build: build.to_owned(),
            assigned_ms: 2,
        })
    }

    fn line(build: &str, number: u64) -> Change {
        Change::AddBuildLog(BuildLogRow {
            build: build.to_owned(),
            number,
            at_ms: 3,
            level: "info".to_owned(),
            step: Some("1".to_owned()),
            line: format!("line {number}"),
        })
    }

    fn open(directory: &tempfile::TempDir) -> Registry {
        let path = directory.path().join("state");
        Registry::open(&StateDirectory::open(Some(&path), &HostIdentity::of_this_process()).unwrap()).unwrap()
    }

    #[test]
    fn a_build_is_noted_followed_and_gone_with_its_template() {
        let directory = tempfile::tempdir().unwrap();
        let registry = open(&directory);
        let building = build("b1", "t1", BuildState::Building);
        registry
            .apply(vec![
                template("t1", "k1", "app"),
                Change::AddBuild(Box::new(building.clone())),
            ])
            .unwrap();
        registry
            .apply((0..3).map(|number| line("b1", number)).collect())
            .unwrap();
        let ready = build("b1", "t1", BuildState::Ready);
        let ended = vec![
            Change::SetBuild(Box::new(ready.clone()), UNDER_WAY),
            tag("t1", "v1", "b1"),
        ];
        registry.apply(ended.clone()).unwrap();
        assert_eq!(registry.template_build("b1").unwrap(), Some(ready));
        assert_eq!(registry.tags_of("t1").unwrap().len(), 1);
        let numbers = |from, limit| {
            let lines = registry.build_log("b1", from, limit).unwrap();
            lines.iter().map(|row| row.number).collect::<Vec<_>>()
        };
        assert_eq!(
            (numbers(0, 2), numbers(2, 100), numbers(3, 100)),
            (vec![0, 1], vec![2], vec![])
        );
        // It ended once; nothing of a second end is kept.
        let again = registry.apply(vec![ended[0].clone(), tag("t1", "v2", "b1")]);
        assert!(matches!(again, Err(RegistryError::Stale { .. })), "{again:?}");
        assert_eq!(registry.tags_of("t1").unwrap().len(), 1);
        registry.apply(vec![Change::RemoveTemplate("t1".to_owned())]).unwrap();
        assert_eq!(registry.template_build("b1").unwrap(), None);
        assert!(registry.all_tags().unwrap().is_empty() && registry.build_log("b1", 0, 9).unwrap().is_empty());
        // One that ends afterwards leaves nothing, and a line of it is lost.
        registry.apply(vec![line("b1", 9)]).unwrap();
        assert!(registry.apply(ended).is_err());
        assert!(registry.all_tags().unwrap().is_empty());
    }

    #[test]
    fn a_name_is_one_template_s_of_a_key() {
        let directory = tempfile::tempdir().unwrap();
        let registry = open(&directory);
        let both = vec![template("t1", "k1", "app"), template("t2", "k2", "app")];
        registry.apply(both).unwrap();
        let taken = registry.apply(vec![template("t3", "k1", "app")]);
        assert!(matches!(taken, Err(RegistryError::Exists { .. })), "{taken:?}");
        let found = |key: &str, which: &str| registry.built_template(key, which).unwrap().map(|row| row.id);
        assert_eq!(found("k1", "app").as_deref(), Some("t1"));
        assert_eq!(found("k2", "app").as_deref(), Some("t2"));
        assert_eq!(found("k3", "app"), None);
        assert_eq!(found("k3", "t2").as_deref(), Some("t2"));
    }

    #[test]
    fn what_old_builds_of_a_key_said_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let registry = open(&directory);
        registry.apply(vec![template("other", "k2", "app")]).unwrap();
        let theirs = build("theirs", "other", BuildState::Ready);
        registry
            .apply(vec![Change::AddBuild(Box::new(theirs)), line("theirs", 0)])
            .unwrap();
        for number in 0..KEPT_LOGS + 2 {
            let (of, id) = (format!("t{number}"), format!("b{number}"));
            let row = TemplateBuildRow {
                created_ms: 2 + number,
                ..build(&id, &of, BuildState::Ready)
            };
            let made = vec![template(&of, "k1", &of), Change::AddBuild(Box::new(row)), line(&id, 0)];
            registry.apply(made).unwrap();
        }
        let has = |id: &str| !registry.build_log(id, 0, 9).unwrap().is_empty();
        assert!(!has("b0") && has("b2") && has("theirs"));
        assert!(registry.template_build("b0").unwrap().is_some());
    }

    #[test]
    fn old_builds_that_no_tag_means_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let registry = open(&directory);
        registry.apply(vec![template("t1", "k1", "app")]).unwrap();
        for number in 0..KEPT_BUILDS + 5 {
            let row = TemplateBuildRow {
                created_ms: number,
                ..build(&format!("b{number}"), "t1", BuildState::Ready)
            };
            registry.apply(vec![Change::AddBuild(Box::new(row))]).unwrap();
            if number == 0 {
                registry.apply(vec![tag("t1", "old", "b0")]).unwrap();
            }
        }
        let left = registry.builds_of("t1").unwrap();
        assert_eq!(i64::try_from(left.len()), Ok(KEPT_BUILDS + 1));
        assert!(left.iter().any(|row| row.id == "b0") && left.iter().all(|row| row.id != "b1"));
    }
}
