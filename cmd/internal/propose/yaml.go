package propose

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// YAML returns the proposal as a part of a configuration file.
func (p *Proposal) YAML() (string, error) {
	text, err := yaml.Dump(p.body.node())
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, line := range p.head {
		b.WriteString("# " + oneLine(line) + "\n")
	}
	b.Write(text)
	return b.String(), nil
}

// node returns the section as YAML, with its notes as comments behind the values.
func (s section) node() *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, e := range s {
		value := valueNode(e.value)
		if text := e.String(); text != "" {
			value.LineComment = "# " + oneLine(text)
		}
		n.Content = append(n.Content, textNode(e.key), value)
	}
	return n
}

func valueNode(value any) *yaml.Node {
	switch v := value.(type) {
	case section:
		return v.node()
	case []section:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for _, one := range v {
			n.Content = append(n.Content, one.node())
		}
		return n
	case []string:
		n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for _, text := range v {
			n.Content = append(n.Content, textNode(text))
		}
		return n
	case int:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.Itoa(v)}
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(v)}
	}
	text, _ := value.(string) // the last of the types that entry names
	return textNode(text)
}

// textNode returns a text as the configuration file has it.
func textNode(text string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: strings.ReplaceAll(text, "${", "$${")}
}
