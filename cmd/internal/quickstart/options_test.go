package quickstart

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/sluicebox/sluicebox/cmd/internal/config"
)

// defaultOptions returns the program's defaults.
func defaultOptions() Options { return Options{For: 10 * time.Second, Rate: 300, Groups: 50} }

func TestOptions(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Options)
		want   string // part of the error; "" for none
	}{
		"usual":             {func(*Options) {}, ""},
		"least":             {func(o *Options) { o.For, o.Rate, o.Groups = minFor, 1, 1 }, ""},
		"most":              {func(o *Options) { o.For, o.Rate, o.Groups, o.FailRate = maxFor, maxRate, maxGroups, 0.9 }, ""},
		"postgres":          {func(o *Options) { o.Source = "postgres://db/shop" }, ""},
		"postgresql":        {func(o *Options) { o.Source = "POSTGRESQL://db/shop" }, ""},
		"no time":           {func(o *Options) { o.For = 0 }, "--for is 0s, must be between 100ms and 1h0m0s"},
		"long":              {func(o *Options) { o.For = maxFor + 1 }, "--for is 1h0m0.000000001s"},
		"no rate":           {func(o *Options) { o.Rate = 0 }, "--rate is 0, must be between 1 and 20000"},
		"high rate":         {func(o *Options) { o.Rate = maxRate + 1 }, "--rate is 20001"},
		"no groups":         {func(o *Options) { o.Groups = -1 }, "--groups is -1, must be between 1 and 10000"},
		"many groups":       {func(o *Options) { o.Groups = maxGroups + 1 }, "--groups is 10001"},
		"negative failures": {func(o *Options) { o.FailRate = -0.1 }, "--fail-rate is -0.1, must be between 0 and 0.9"},
		"all fail":          {func(o *Options) { o.FailRate = 1 }, "--fail-rate is 1"},
		"no number":         {func(o *Options) { o.FailRate = math.NaN() }, "--fail-rate is NaN"},
		"mysql":             {func(o *Options) { o.Source = "mysql://db/shop" }, ""},
		"mariadb":           {func(o *Options) { o.Source = "MariaDB://db/shop" }, ""},
		"mongodb":           {func(o *Options) { o.Source = "mongodb://u:canary@db1,db2/shop" }, ""},
		"mongodb+srv":       {func(o *Options) { o.Source = "mongodb+srv://u:canary@db/shop" }, ""},
		"oracle":            {func(o *Options) { o.Source = "oracle://u:canary@db/shop" }, "--source must begin with postgres://, mysql://, mariadb:// or mongodb://"},
		"file":              {func(o *Options) { o.Source = "sqlite:shop.db" }, "--source takes a database server"},
		"no URL":            {func(o *Options) { o.Source = config.URL("canary") }, "--source must begin with postgres://"},
		"two":               {func(o *Options) { o.Rate, o.Groups = 0, 0 }, "--rate is 0, must be between 1 and 20000 rows a second\n--groups is 0"},
	} {
		o := defaultOptions()
		tt.change(&o)
		err := o.Validate()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: the message shows the URL: %v", name, err)
		}
	}
}

// TestOrderOfTheBounds: ids fit the column even with the largest options.
func TestOrderOfTheBounds(t *testing.T) {
	most := order{maxGroups - 1, int(maxFor.Seconds())*maxRate + 1}
	for _, o := range []order{{0, 1}, {7, 12}, most} {
		if len(o.id()) != 13 {
			t.Errorf("%+v has the id %q", o, o.id())
		}
		got, err := parseOrder([]byte(o.payload()))
		if err != nil || got != o {
			t.Errorf("%s reads as %+v, %v", o.payload(), got, err)
		}
	}
	for _, payload := range []string{
		"", "7", "{}", `{"id":"0000700000012"}`, `{"id":"x"}`,
		strings.Replace(order{7, 12}.payload(), `"number":12`, `"number":13`, 1),
		strings.Replace(order{7, 12}.payload(), `"customer-7"`, `"customer-8"`, 1),
		order{7, 12}.payload() + " ",
	} {
		if o, err := parseOrder([]byte(payload)); err == nil {
			t.Errorf("%q reads as %+v", payload, o)
		}
	}
}
