package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/sluicebox/sluicebox/store"
)

// MaxSources is the most entries of sources: each costs a few sessions and megabytes.
const MaxSources = 1000

// Sources returns a configuration for each entry of sources, which has it as source and its name as
// name. Without sources it is the configuration itself.
func (c *Config) Sources() []*Config {
	if c.sources == nil {
		return []*Config{c}
	}
	return c.sources
}

// SourceName returns the name of the entry of sources, "" for a file with source.
func (c *Config) SourceName() string {
	if c.entry == nil {
		return ""
	}
	return c.Settings.Name
}

// SourceNames returns the names of the entries of sources, nil for a file with source.
func (c *Config) SourceNames() (names []string) {
	for i := range c.Settings.Sources {
		names = append(names, c.Settings.Sources[i].Name)
	}
	return names
}

// sourceEntry is one entry of sources. Its configuration is that of a file with source: keys and
// variables of the entry stand for those of source.
type sourceEntry struct {
	index    int
	outboxes []int // positions in the file of the outboxes that it has; nil for all
}

var (
	sourceKey     = regexp.MustCompile(`\bsource\.`)
	outboxIndexes = regexp.MustCompile(`\boutboxes\[(\d+)\]`)
)

// written returns problems with the keys and variables of the file.
func (e *sourceEntry) written(found problems) problems {
	if e == nil {
		return found
	}
	for i := range found {
		p := &found[i]
		p.Where, p.Key, p.Text = e.rename(p.Where), e.rename(p.Key), e.rename(p.Text)
	}
	return found
}

// rename replaces keys and variables of source in a text by those of the entry.
func (e *sourceEntry) rename(text string) string {
	if e == nil {
		return text
	}
	at := strconv.Itoa(e.index)
	text = strings.ReplaceAll(sourceKey.ReplaceAllString(text, "sources["+at+"]."), SourceVariable[:len(SourceVariable)-len("URL")], variableName("sources")+"_"+at+"_")
	if e.outboxes == nil {
		return text
	}
	return outboxIndexes.ReplaceAllStringFunc(text, func(key string) string {
		i, err := strconv.Atoi(outboxIndexes.FindStringSubmatch(key)[1])
		if err != nil || i >= len(e.outboxes) {
			return key
		}
		return fmt.Sprintf("outboxes[%d]", e.outboxes[i])
	})
}

// checkSingle reports keys that only a file with sources has.
func (k *checker) checkSingle(s *Settings) {
	switch {
	case k.isGiven("sources") && k.hasNoProblem("sources"):
		k.fail("sources", "has no entry; add one, or write source")
	case s.Process != "":
		k.fail("process", "applies only to several sources; remove it, or write sources")
	case k.isGiven("spread-after"):
		k.fail("spread-after", "applies only to several sources; remove it, or write sources")
	}
}

// checkSources validates what concerns several sources together. The entries themselves are checked
// with their configurations.
func (k *checker) checkSources(s *Settings) {
	for _, key := range []string{"source", "name"} {
		if k.isGiven(key) {
			k.fail(key, "excludes sources, whose entries have it; remove one of them")
		}
	}
	if s.Ingest != nil {
		k.fail("ingest", "needs one source, because its rows are written into one database; remove it, or run a process for that source")
	}
	if s.Scale != nil {
		k.fail("scale", "needs one source; remove it, or run a process for that source")
	}
	if s.Mode != "relay" && k.hasNoProblem("mode") {
		k.fail("mode", "is %s, which needs one source; name it: sluicebox %s --source-name NAME", s.Mode, s.Mode)
	}
	if len(s.Sources) > MaxSources {
		k.fail("sources", "has %d entries, at most %d run in one process; share them out among several files", len(s.Sources), MaxSources)
	}
	if strings.ContainsFunc(s.Process, func(r rune) bool { return r <= ' ' || r > '~' }) || len(s.Process) > 100 {
		k.fail("process", "is %q, must be at most 100 printable characters without blanks", s.Process)
	}
	if s.SpreadAfter < 0 {
		k.fail("spread-after", "is %s, must not be negative", s.SpreadAfter)
	}
	first := map[string]int{}
	for i := range s.Sources {
		path := fmt.Sprintf("sources[%d].name", i)
		name := s.Sources[i].Name
		if !k.requireValue(path, name, "write 1 to 40 of the characters a-z, 0-9 and _") || !k.hasNoProblem(path) {
			continue
		}
		if at, known := first[name]; known {
			k.fail(path, "is %q, which sources[%d] has; choose another", name, at)
		} else if first[name] = i; !relayName.MatchString(name) {
			k.fail(path, "is %q, must be 1 to 40 of the characters a-z, 0-9 and _", name)
		}
	}
}

// sources returns the configurations of the entries, and the problems of all of them. One that
// several entries have is listed once.
func (f *parser) sources(root *yaml.Node, environ []string, entries []NamedSource) (all []*Config, found problems) {
	shared := slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		return strings.HasPrefix(entry, variableName("sources")+"_") || strings.HasPrefix(entry, variableName("sources")+"=") || strings.HasPrefix(entry, variableName("process")+"=") || strings.HasPrefix(entry, variableName("spread-after")+"=")
	})
	list, boxes := child(root, "sources"), child(root, "outboxes")
	for _, entry := range environ {
		if text, found := strings.CutPrefix(entry, variableName("sources")+"="); found {
			list, _ = document(variableName("sources"), []byte(text)) // decoded already
		}
	}
	for i := range entries {
		entry := &sourceEntry{index: i}
		own := &yaml.Node{Kind: yaml.MappingNode}
		if list != nil && i < len(list.Content) {
			own = resolveAlias(list.Content[i])
		}
		name, kept := child(own, "name"), boxes
		if name == nil {
			name = textNode(entries[i].Name)
		}
		if names := entries[i].Outboxes; len(names) > 0 {
			var problem string
			if kept, problem = entry.choose(boxes, names); problem != "" {
				key := fmt.Sprintf("sources[%d].outboxes", i)
				found = append(found, Problem{Where: fileLine(f.name, own.Line), Key: key, Text: problem, line: own.Line})
				continue
			}
		}
		document := mapping{without(root, "sources", "process", "spread-after", "outboxes")}
		document.add("name", name)
		document.add("source", without(own, "name", "outboxes"))
		if kept != nil {
			document.add("outboxes", kept)
		}
		c, err := f.config(document.Node, append(entryVariables(i, environ), shared...), entry)
		if err != nil {
			for _, p := range err.(*Error).Problems { //nolint:errorlint,forcetypeassert // config returns no other
				if !slices.Contains(found, p) {
					found = append(found, p)
				}
			}
			continue
		}
		all = append(all, c)
	}
	return all, found
}

// entryVariables returns the variables of an entry as variables of source.
func entryVariables(index int, environ []string) (own []string) {
	prefix := variableName(fmt.Sprintf("sources[%d]", index)) + "_"
	for _, entry := range environ {
		key, found := strings.CutPrefix(entry, prefix)
		switch {
		case !found || strings.HasPrefix(key, "OUTBOXES="):
		case strings.HasPrefix(key, "NAME="):
			own = append(own, variablePrefix+key)
		default:
			own = append(own, variableName("source")+"_"+key)
		}
	}
	return own
}

// choose returns the entries of outboxes with these names, and the problem of a name that none has.
func (e *sourceEntry) choose(boxes *yaml.Node, names []string) (kept *yaml.Node, problem string) {
	kept = &yaml.Node{Kind: yaml.SequenceNode}
	var known []string
	if boxes != nil {
		kept.Line, kept.Column = boxes.Line, boxes.Column
		for i, box := range boxes.Content {
			name := outboxName(resolveAlias(box))
			if known = append(known, name); slices.Contains(names, name) {
				kept.Content, e.outboxes = append(kept.Content, box), append(e.outboxes, i)
			}
		}
	}
	for _, name := range names {
		if slices.Contains(known, name) {
			continue
		}
		if near := store.Nearest(name, known); near != "" {
			return nil, fmt.Sprintf("names %q, which is no outbox; did you mean %s?", name, near)
		}
		return nil, fmt.Sprintf("names %q, which is no outbox; the outboxes are %s", name, strings.Join(known, ", "))
	}
	return kept, ""
}

// outboxName returns the name of an entry of outboxes, "" if it has none.
func outboxName(box *yaml.Node) string {
	for _, key := range []string{"name", "table", "message-prefix"} {
		if n := child(box, key); n != nil && n.Value != "" {
			return n.Value
		}
	}
	return ""
}

// mapping is a mapping to add keys to.
type mapping struct{ *yaml.Node }

// add adds a key with its value, which says where it is.
func (m mapping) add(key string, value *yaml.Node) {
	k := textNode(key)
	k.Line, k.Column = value.Line, value.Column
	m.Content = append(m.Content, k, value)
}

// child returns the value of a key of a mapping, nil if it has none.
func child(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return resolveAlias(n.Content[i+1])
		}
	}
	return nil
}

// without returns a copy of a mapping without some keys.
func without(n *yaml.Node, keys ...string) *yaml.Node {
	of := &yaml.Node{Kind: yaml.MappingNode}
	if n == nil || n.Kind != yaml.MappingNode {
		return of
	}
	of.Line, of.Column = n.Line, n.Column
	for i := 0; i+1 < len(n.Content); i += 2 {
		if !slices.Contains(keys, n.Content[i].Value) {
			of.Content = append(of.Content, n.Content[i], n.Content[i+1])
		}
	}
	return of
}
