package finding

import (
	"slices"
	"testing"
)

// TestLiterals reads constraints as the servers print them.
func TestLiterals(t *testing.T) {
	for expression, want := range map[string][]string{
		`((status)::text = ANY ((ARRAY['NEW'::character varying, 'SENT'::character varying])::text[]))`: {"NEW", "SENT"},
		"(`status` in (_utf8mb4'it''s',_utf8mb4'SENT'))":                                                {"it's", "SENT"},
		"(status = ANY (ARRAY[0, 1, '-2'::integer, 10]))":                                               {"0", "1", "-2", "10"},
		"status IN (0, 1,2)":      {"0", "1", "2"},
		"(length(status2) <= 20)": {"20"},
		"status IS NOT NULL":      nil,
		"status IN ('', 'x')":     {"", "x"},
	} {
		if got := Literals(expression); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", expression, got, want)
		}
	}
}

// TestConstant reads defaults as the servers print them.
func TestConstant(t *testing.T) {
	for expression, want := range map[string]string{
		"'NEW'::character varying":         "NEW",
		"'it''s'::shop.\"Outbox status\"":  "it's",
		"'NEW'::character varying(20)":     "NEW",
		"'-1'::integer":                    "-1",
		"0":                                "0",
		"(0)::smallint":                    "0",
		"false":                            "false",
		"'queued'":                         "queued",
		"now()":                            "",
		"nextval('outbox_id_seq'::text)":   "",
		"NULL":                             "",
		"current_timestamp()":              "",
		"":                                 "",
		"('a'::text || 'b'::text)":         "",
		"gen_random_uuid()":                "",
		"'2020-01-01'::date + '1'::bigint": "",
	} {
		if got := Constant(expression); got != want {
			t.Errorf("%s: got %q, want %q", expression, got, want)
		}
	}
}
