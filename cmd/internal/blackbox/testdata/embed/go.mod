module example.com/embed

go 1.26.0

require github.com/sluicebox/sluicebox v0.0.0

replace github.com/sluicebox/sluicebox => ../../../../..
